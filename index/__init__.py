"""Data at rest and the CPU work on it. NumPy and native code only, never torch.

`targeting` declares rules, and `proposal` proposes them for a table. `tables` reads the tables that
people have, and `import_sids` makes one of published SIDs. `builder` turns a table of ads into a
snapshot, which `storage` writes and reads. A `snapshot` has a `trie`, `matchers` of its nodes, and
the ads and rules of `matching`. The fast paths are C++ in `native`, whose header
include/grace/match.h alone says what "match" means.
"""
