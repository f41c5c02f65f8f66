"""Processes that hold the connections and pass the calls on to the server."""
