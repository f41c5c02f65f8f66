"""Synthetic catalogues and users, and the measurements made on them.

`grace.catalogues.synth` makes catalogues of ads whose Semantic IDs, targeting rules and users
hang together.
Nothing in the product imports this package; it may import everything above it.
"""
