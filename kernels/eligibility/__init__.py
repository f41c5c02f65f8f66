"""Mode `exact`: nodes that lead to an ad that a user may see. Begin with `eligible_nodes.py`."""
