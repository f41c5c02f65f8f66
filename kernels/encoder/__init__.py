"""The operations of the encoder, each with its torch reference and its fast body."""
