"""GRACE serves generative retrieval for ads. Each package here is a link to a top-level folder."""
