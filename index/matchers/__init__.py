"""Matchers, which decoding tests at each node of the trie: bitmask rows, Bloom rows, partitions."""
