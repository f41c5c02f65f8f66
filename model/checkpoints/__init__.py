"""Checkpoints on disk: reading, writing, importing Hugging Face T5, random weights, sizes."""
