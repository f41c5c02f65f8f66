"""Another snapshot or checkpoint while the server runs: when, whether it may, and how."""
