"""Targeting: what the schema declares, and the rules of the ads.

A targeting predicate has these places, in this order:

    tests/support/oracle.py       defines who may see an ad, on plain Python sets: change it first
    targeting/schema.py           declares the predicate, and checks the declaration
    builder/rule_table.py         encodes an ad's rule (C++: rules.cpp); targeting/rules.py holds it
    users/                        encodes what a request says of its user
    native/include/grace/match.h  tests the rows of a node while decoding, on the CPU and the GPU
    matching/exact.py             decides on an ad's rule, exactly (C++: match_rules.cpp)
    matching/explain.py           says in words why an ad passed or not
"""
