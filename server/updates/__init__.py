"""Updates of ads while the server runs: from callers or a file, through the log, to the replies."""
