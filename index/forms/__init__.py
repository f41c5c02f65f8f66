"""The forms of components. A rule is the AND of its components, and has one row of each.

Each form has a file here, one in native/src/forms, which tests rows exactly, and one in
kernels/eligibility, which tests all rows at once before decoding.
"""
