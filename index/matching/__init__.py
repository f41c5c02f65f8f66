"""From generated SIDs to ads: expansion, exact matching, and why an ad does not match."""
