"""The operations of the encoder: a torch reference beside each fast body."""
