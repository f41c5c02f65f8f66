"""The other end of the wire: what `grace retrieve` and `grace demo` call a server with.

    with RetrievalClient("127.0.0.1:50051") as client:
        reply = client.retrieve(request_of_json(json.loads(text)), timeout=1.0)

One client serves any number of threads.
"""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, cast

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc_health.v1 import health_pb2

from configs.errors import CallError, InvalidCallError, RequestError
from proto import retrieval_pb2 as wire

__all__ = ["RetrievalClient", "request_of_json"]

SERVICE = "grace.v1.AdsRetrieval"
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
LOOK_AGAIN_SECONDS = 0.05
CHECK_SECONDS = 5.0


def request_of_json(values: Mapping[str, Any]) -> wire.RetrieveRequest:
    """Protobuf's JSON form, strictly: an unknown key is a RequestError that names the known ones.

    What the values may be is for the server to say.
    """
    _require_known(values, cast(Descriptor, wire.RetrieveRequest.DESCRIPTOR), "")
    try:
        return json_format.ParseDict(dict(values), wire.RetrieveRequest())
    except json_format.ParseError as error:
        raise RequestError("request", " ".join(str(error).split())) from None


class RetrievalClient:
    def __init__(self, address: str) -> None:
        """Connects with the first call, and again after a lost connection."""
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
            raise self._told(error) from None
        return reply

    def is_ready(self, timeout: float = CHECK_SECONDS) -> bool:
        """Whether the server's health is SERVING; not if there is no server."""
        try:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            status = self._check(request, timeout=timeout).status
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False
            raise self._told(error) from None
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def wait_ready(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not self.is_ready(max(end - time.monotonic(), LOOK_AGAIN_SECONDS)):
            if time.monotonic() >= end:
                text = f"{self.address} is not ready after {timeout:g} s; see the server's log"
                raise CallError("UNAVAILABLE", "not_ready", text)
            time.sleep(LOOK_AGAIN_SECONDS)

    def _told(self, error: grpc.RpcError) -> CallError:
        code, text = error.code().name, " ".join((error.details() or "").split())
        trailers = dict(cast(Iterable[tuple[str, str]], error.trailing_metadata() or ()))
        reason = trailers.get("grace-reason", "")
        if code == "INVALID_ARGUMENT":
            return InvalidCallError(code, reason, text)
        if reason:
            return CallError(code, reason, text)
        if code == "UNAVAILABLE":
            text = f"no server at {self.address}; start it (grace serve), or give --address"
        elif code == "DEADLINE_EXCEEDED":
            text = f"{self.address} did not answer in time; allow more (--timeout)"
        elif code == "UNIMPLEMENTED":
            text = f"what answers at {self.address} is no grace server; give --address"
        return CallError(code, "", text)


def _require_known(values: Any, message: Descriptor, at: str) -> None:
    """Every key, however deep, is a field's name as the .proto file or as JSON spells it."""
    if not isinstance(values, Mapping):
        raise RequestError(at or "request", f"expected an object, got {type(values).__name__}")
    fields = {field.name: field for field in message.fields}
    spelled = fields | {field.json_name: field for field in message.fields}
    for key, value in values.items():
        if key not in spelled:
            fault = f"unknown key {key!r}; known: {', '.join(fields)}"
            raise RequestError(at or "request", fault)
        _require_known_within(value, spelled[key], f"{at}.{key}" if at else key)


def _require_known_within(value: Any, field: FieldDescriptor, at: str) -> None:
    # No message of a request has a repeated message field other than a map.
    message = field.message_type
    if message is None or value is None:
        return
    if not message.GetOptions().map_entry:
        _require_known(value, message, at)
        return
    entry = cast(Descriptor, message.fields_by_name["value"].message_type)
    if not isinstance(value, Mapping):
        raise RequestError(at, f"expected an object, got {type(value).__name__}")
    for name, item in value.items():
        _require_known(item, entry, f"{at}.{name}")
