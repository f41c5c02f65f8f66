"""The tables of the result files in docs/performance.md, next to the paper's numbers."""
