"""Read tables of Parquet, JSON lines or CSV, on disk or at a URL; and data folders."""
