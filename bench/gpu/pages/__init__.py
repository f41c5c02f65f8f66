"""What documents show of the result files: tables and pictures, next to the paper's numbers."""
