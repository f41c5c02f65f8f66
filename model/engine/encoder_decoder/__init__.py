"""The fast engine of the T5 family: an encoder, and a decoder with cross-attention."""
