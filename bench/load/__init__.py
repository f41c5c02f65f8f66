"""Load on a running server: an open-loop client, its result in ghz's JSON, and a report of it."""
