"""The soak: many kinds of work for hours, and what the server holds meanwhile."""
