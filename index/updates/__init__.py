"""Stops and weights of ads that change while a snapshot is served: updates, state and log."""
