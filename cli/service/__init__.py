"""Commands that run a server, call it, and measure it."""
