"""The features stage's operations: sums and means of rows of large tables."""
