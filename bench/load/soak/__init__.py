"""Work of many kinds for hours, and what the server holds meanwhile."""
