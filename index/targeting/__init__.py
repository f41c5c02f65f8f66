"""Targeting: what the schema declares, and the rules of the ads.

    schema.py        declares what rules may say, and checks the declaration
    rules.py         rules and their rows, as arrays
    expressions.py   parses rules written as texts into clauses
    leaves.py        what a test in such a text means for each kind of name

A rule is the AND of its components; `grace.index.forms` has what each form of component does.
`tests/support/oracle.py` defines who may see an ad, on plain Python sets: change it first.
"""
