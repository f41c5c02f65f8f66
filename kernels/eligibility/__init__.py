"""Mode `exact`: which nodes of the trie lead to an ad that a user may see.

Eligibility flows rows -> rules -> leaves -> nodes. `eligible_nodes.py` is the place to begin.
"""
