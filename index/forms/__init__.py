"""The forms of components. A rule is the AND of its components, and has one row of each.

    component.py   what each form can do
    bits.py        all attributes of the schema, together
    lists.py       a set of the schema
    interval.py    a range or a flight
    properties.py  a property of ads, by which requests filter

Each form has a file here, one in native/src/forms, which tests rows exactly, and one in
kernels/eligibility, which tests all rows at once before decoding.
"""
