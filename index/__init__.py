"""Data at rest and the CPU work on it. NumPy and native code only, never torch.

`targeting` declares rules. `importers` turn published SIDs into an ads table, and `builder` turns
that into a snapshot, which `storage` writes and reads. A `snapshot` has a `trie`, `matchers` of its
nodes, and the ads and rules of `matching`. The fast paths are C++ in `native`, whose header
include/grace/match.h alone says what "match" means.
"""
