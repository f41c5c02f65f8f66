"""What eligibility while decoding is worth: `grace bench eligibility`, its tables and its picture.

`study.py` is the place to begin. Every way to decode serves the same users with the same scores and
beams, and differs only in which children a step admits; then the generated ads are matched exactly.
"""
