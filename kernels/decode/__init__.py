"""What admits and selects beams, and `ops.py`: the table of the decoder's operations."""
