"""Data at rest and the CPU work on it: targeting, trie, builder, ad expansion and exact matching,
snapshots. NumPy and native code only, never torch.

A snapshot is built by `grace.index.builder`, stored and read by `grace.index.storage`, and
described by the
dataclasses of `grace.index.snapshot`. The fast paths are C++ in `native`;
`native/include/grace/match.h`
alone says what "match" means.
"""
