"""Clients of a server, for threads and for asyncio.

    with RetrievalClient("127.0.0.1:50051") as client:
        reply = client.retrieve(request_of_json(json.loads(text)), timeout=1.0)

    async with AsyncRetrievalClient("127.0.0.1:50051") as client:
        reply = await client.retrieve(request, timeout=1.0)

    RetrievalClient("ads.example.com:50051", tls=Tls(ca=Path("ca.pem")), token="...")

A `RetrievalClient` serves any number of threads, an `AsyncRetrievalClient` one event loop.
"""

import re
import time
from collections.abc import Iterable
from ipaddress import IPv6Address
from typing import Self, cast

import grpc
from grpc_health.v1 import health_pb2

from grace.client.connection import Access, Tls, handshake_fault, tls_fault
from grace.configs.errors import CallError, InputError, InvalidCallError
from grace.proto import retrieval_pb2 as wire

SERVICE = "grace.v1.AdsRetrieval"
METHOD = f"/{SERVICE}/Retrieve"
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
REFUSED = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
"""Statuses that refuse what the request says."""
NO_SUCH_SERVICE = ("UNIMPLEMENTED", "NOT_FOUND")
"""Statuses of a call and of a health check that another service answers."""
RETRIEVE_ELSEWHERE = (
    "Retrieve; it may be the Admin address: use the one that the section listen listens on"
)
LOOK_AGAIN_SECONDS = 0.05
CHECK_SECONDS = 5.0
MAX_PORT = 65535
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})", re.ASCII)


class RetrievalClient:
    def __init__(self, address: str, tls: Tls | None = None, token: str | None = None) -> None:
        """Connect with the first call, and again after a lost connection.

        address  HOST:PORT; anything else is an InputError
        tls      None: plaintext
        token    for servers that require one; without TLS, it crosses the network in plaintext
        """
        require_host_and_port(address)
        self.address = address
        self._access = access = Access(tls, token)
        self._metadata = access.metadata
        self._channel = access.channel(address, OPTIONS)
        self._retrieve = self._channel.unary_unary(
            METHOD,
            request_serializer=wire.RetrieveRequest.SerializeToString,
            response_deserializer=wire.RetrieveResponse.FromString,
        )
        self._check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def retrieve(self, request: wire.RetrieveRequest, timeout: float) -> wire.RetrieveResponse:
        """Return the reply. `timeout`, in seconds, is the deadline, which the server sees too."""
        try:
            reply: wire.RetrieveResponse = self._retrieve(
                request, timeout=timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise call_error(self.address, self._access, error) from None
        return reply

    def is_ready(self, timeout: float = CHECK_SECONDS) -> bool:
        """Return whether the server's health is SERVING; False without a server.

        Raise a CallError if another service answers, or if the TLS of client and server differs.
        """
        return self._why_not_ready(timeout) is None

    def wait_ready(self, timeout: float) -> None:
        """Wait until health is SERVING, whether or not there is a server yet."""
        end = time.monotonic() + timeout
        while why := self._why_not_ready(max(end - time.monotonic(), LOOK_AGAIN_SECONDS)):
            if time.monotonic() >= end:
                text = f"no server at {self.address} was ready within {timeout:g} s"
                raise CallError("UNAVAILABLE", "", f"{text}; {why}")
            time.sleep(LOOK_AGAIN_SECONDS)

    def _why_not_ready(self, timeout: float) -> str | None:
        """Return None if the server is ready, or else the remedy."""
        remedy = "see its log, or start it (grace serve)"
        try:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            status = self._check(request, timeout=timeout).status
        except grpc.RpcError as error:
            text = error.details() or ""
            if error.code() is grpc.StatusCode.UNAVAILABLE and not tls_fault(self.address, text):
                return handshake_fault(self.address, text, self._access) or remedy
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return remedy
            raise call_error(self.address, self._access, error) from None
        return None if status == health_pb2.HealthCheckResponse.SERVING else remedy


class AsyncRetrievalClient:
    """The same call for asyncio. Create it inside the event loop that uses it."""

    def __init__(self, address: str, tls: Tls | None = None, token: str | None = None) -> None:
        """Connect with the first call, and again after a lost connection."""
        require_host_and_port(address)
        self.address = address
        self._access = access = Access(tls, token)
        self._metadata = access.metadata
        self._channel = access.aio_channel(address, OPTIONS)
        self._retrieve = self._channel.unary_unary(
            METHOD,
            request_serializer=wire.RetrieveRequest.SerializeToString,
            response_deserializer=wire.RetrieveResponse.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def retrieve(
        self, request: wire.RetrieveRequest, timeout: float
    ) -> wire.RetrieveResponse:
        """Return the reply. `timeout`, in seconds, is the deadline, which the server sees too."""
        try:
            reply: wire.RetrieveResponse = await self._retrieve(
                request, timeout=timeout, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise call_error(self.address, self._access, error) from None
        return reply


def call_error(
    address: str, access: Access, error: grpc.RpcError, other: str = RETRIEVE_ELSEWHERE
) -> CallError:
    """Return the error of a call. `other` names the service, and what may answer instead of it."""
    code, text = error.code().name, " ".join((error.details() or "").split())
    trailers = dict(cast(Iterable[tuple[str, str]], error.trailing_metadata() or ()))
    reason = trailers.get("grace-reason", "")
    if code in REFUSED:
        return InvalidCallError(code, reason, text)
    if reason:
        return CallError(code, reason, text)
    if code == "UNAVAILABLE":
        text = handshake_fault(address, text, access) or (
            f"no server at {address}; start it (grace serve), or use another address"
        )
    elif code == "DEADLINE_EXCEEDED":
        text = f"{address} did not answer in time; allow a longer timeout"
    elif code in NO_SUCH_SERVICE:
        text = f"what answers at {address} does not serve {other}"
    return CallError(code, "", text)


def require_host_and_port(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None or not (found["ipv6"] is None or _is_ipv6(found["ipv6"])):
        fault = "expected HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051"
        raise InputError(f"address {address!r}: {fault}")
    if not 1 <= int(found["port"]) <= MAX_PORT:
        raise InputError(f"address {address!r}: the port must be 1 to {MAX_PORT}")


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
