"""Load on a running server: an open-loop client, what it measured, and the picture of it."""
