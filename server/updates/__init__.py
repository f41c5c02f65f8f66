"""Updates of ads while the server runs: from their callers, through the log, to what is served."""
