"""Semantic IDs from embeddings: a codebook of residual k-means, its folder and its report."""
