"""Call a GRACE server from Python."""

from grace.client.client import RetrievalClient, request_of_json

__all__ = ["RetrievalClient", "request_of_json"]
