"""Targeting: what the schema declares, and the rules of the ads.

A rule is the AND of its components; `grace.index.forms` has what each form of component does.
`tests/support/oracle.py` defines who may see an ad, on plain Python sets: change it first.
"""
