"""What decoding tests at each node of the trie: bitmask rows, Bloom rows, k-way partitions."""
