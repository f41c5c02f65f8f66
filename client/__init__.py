"""Call a GRACE server from Python."""

from grace.client.admin_client import AdminClient
from grace.client.client import AsyncRetrievalClient, RetrievalClient
from grace.client.connection import PLAINTEXT, Access, Tls, access_of, handshake_fault
from grace.client.request_json import request_of_json

__all__ = [
    "PLAINTEXT",
    "Access",
    "AdminClient",
    "AsyncRetrievalClient",
    "RetrievalClient",
    "Tls",
    "access_of",
    "handshake_fault",
    "request_of_json",
]
