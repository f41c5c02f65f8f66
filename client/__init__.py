"""Call a GRACE server from Python.

from grace.client import Client

with Client("127.0.0.1:50051") as client:
    result = client.retrieve(user={"country": "US"}, max_ads=5, timeout=1.0)
"""

from grace.client.admin_client import AdminClient
from grace.client.client import AsyncClient, Client
from grace.client.connection import Tls, tls_of
from grace.client.request import Events, FilterFields, RequestFields, request_of
from grace.client.request_json import request_of_json
from grace.client.result import Ad, Ads, RetrieveResult, Sids
from grace.configs.errors import CallError, InputError, InvalidCallError, RequestError
