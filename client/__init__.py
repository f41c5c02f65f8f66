"""Call a GRACE server from Python."""

from grace.client.client import AsyncRetrievalClient, RetrievalClient
from grace.client.request_json import request_of_json

__all__ = ["AsyncRetrievalClient", "RetrievalClient", "request_of_json"]
