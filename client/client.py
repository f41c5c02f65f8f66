"""A client of a server, which `grace retrieve` and `grace demo` use.

    with RetrievalClient("127.0.0.1:50051") as client:
        reply = client.retrieve(request_of_json(json.loads(text)), timeout=1.0)

One client serves any number of threads.
"""

import re
import time
from collections.abc import Iterable
from ipaddress import IPv6Address
from types import TracebackType
from typing import Self, cast

import grpc
from grpc_health.v1 import health_pb2

from grace.client.request_json import request_of_json
from grace.configs.errors import CallError, InputError, InvalidCallError
from grace.proto import retrieval_pb2 as wire

__all__ = ["RetrievalClient", "request_of_json"]

SERVICE = "grace.v1.AdsRetrieval"
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
REFUSED = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
"""Statuses that refuse what the request says."""
NO_SUCH_SERVICE = ("UNIMPLEMENTED", "NOT_FOUND")
"""What a call and a health check get from another service."""
LOOK_AGAIN_SECONDS = 0.05
CHECK_SECONDS = 5.0
MAX_PORT = 65535
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})", re.ASCII)


class RetrievalClient:
    def __init__(self, address: str) -> None:
        """Connects with the first call, and again after a lost connection.

        address  HOST:PORT; anything else, which gRPC would only fail to reach, is an InputError
        """
        _require_host_and_port(address)
        self.address = address
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._retrieve = self._channel.unary_unary(
            f"/{SERVICE}/Retrieve",
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def retrieve(self, request: wire.RetrieveRequest, timeout: float) -> wire.RetrieveResponse:
        """`timeout`, in seconds, is the call's deadline, which the server sees too."""
        try:
            reply: wire.RetrieveResponse = self._retrieve(request, timeout=timeout)
        except grpc.RpcError as error:
            raise self._call_error(error) from None
        return reply

    def is_ready(self, timeout: float = CHECK_SECONDS) -> bool:
        """Whether the server's health is SERVING; not if there is no server."""
        try:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            status = self._check(request, timeout=timeout).status
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False
            raise self._call_error(error) from None
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def wait_ready(self, timeout: float) -> None:
        """Wait until health is SERVING, whether or not there is a server yet."""
        end = time.monotonic() + timeout
        while not self.is_ready(max(end - time.monotonic(), LOOK_AGAIN_SECONDS)):
            if time.monotonic() >= end:
                text = f"no server at {self.address} was ready within {timeout:g} s"
                raise CallError(
                    "UNAVAILABLE", "", f"{text}; see its log, or start it (grace serve)"
                )
            time.sleep(LOOK_AGAIN_SECONDS)

    def _call_error(self, error: grpc.RpcError) -> CallError:
        code, text = error.code().name, " ".join((error.details() or "").split())
        trailers = dict(cast(Iterable[tuple[str, str]], error.trailing_metadata() or ()))
        reason = trailers.get("grace-reason", "")
        if code in REFUSED:
            return InvalidCallError(code, reason, text)
        if reason:
            return CallError(code, reason, text)
        if code == "UNAVAILABLE":
            text = f"no server at {self.address}; start it (grace serve), or give --address"
        elif code == "DEADLINE_EXCEEDED":
            text = f"{self.address} did not answer in time; allow more (--timeout)"
        elif code in NO_SUCH_SERVICE:
            text = (
                f"what answers at {self.address} does not serve Retrieve; it may be a server's "
                "Admin address: give --address that of its section listen"
            )
        return CallError(code, "", text)


def _require_host_and_port(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None or not (found["ipv6"] is None or _is_ipv6(found["ipv6"])):
        fault = "expected HOST:PORT, say 127.0.0.1:50051 or [::1]:50051"
        raise InputError(f"address {address!r}: {fault}")
    if not 1 <= int(found["port"]) <= MAX_PORT:
        raise InputError(f"address {address!r}: the port must be 1 to {MAX_PORT}")


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
