"""Codebooks at rest: items with vectors, and the Semantic IDs that a codebook gives them."""
