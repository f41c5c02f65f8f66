"""The admission and selection of beams, and the table of a decoder's operations (`ops.py`)."""
