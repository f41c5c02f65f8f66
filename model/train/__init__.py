"""Training of small models on an interaction log, and how well they predict what comes next."""
