"""Call a GRACE server from Python."""
