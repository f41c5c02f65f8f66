"""Live snapshots: a running server loads another snapshot or checkpoint, and swaps."""
