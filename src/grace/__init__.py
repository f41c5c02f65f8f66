"""GRACE serves generative retrieval for ads. Each package here links to a top-level folder."""
