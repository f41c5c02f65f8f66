"""Commands that make and check ads tables, Semantic IDs and snapshots."""
