"""The calls of Admin that change the served snapshot and checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from grace.proto.retrieval_pb2 import (
    LoadRequest,
    LoadResponse,
    RollbackRequest,
    RollbackResponse,
    UnpinResponse,
)
from grace.server.errors import ServiceError, invalid_field, malformed
from grace.server.reload.reloads import Reloads
from grace.server.transport.listener.grpc_listener import Context, Method

_Request = TypeVar("_Request", bound=Message)


class LoadCalls:
    """Load, Rollback and Unpin. Each returns once the server serves what the reply names."""

    def __init__(self, reloads: Reloads) -> None:
        self._reloads = reloads

    @property
    def methods(self) -> Mapping[str, Method]:
        return {"Load": self._load, "Rollback": self._roll_back, "Unpin": self._unpin}

    async def _load(self, message: bytes, context: Context) -> bytes:
        try:
            request = _parsed(message, LoadRequest)
            checkpoint = _folder(request.checkpoint)
            served = await self._reloads.load(request.snapshot_version, checkpoint)
        except ServiceError as failure:
            await context.abort(failure.code, failure.text, failure.trailers)
        return LoadResponse(
            snapshot_version=served.version, checkpoint=served.checkpoint, changed=served.changed
        ).SerializeToString()

    async def _roll_back(self, message: bytes, context: Context) -> bytes:
        try:
            version = _parsed(message, RollbackRequest).snapshot_version
            served = await self._reloads.roll_back(version)
        except ServiceError as failure:
            await context.abort(failure.code, failure.text, failure.trailers)
        return RollbackResponse(
            snapshot_version=served.version, previous_version=served.previous_version
        ).SerializeToString()

    async def _unpin(self, message: bytes, context: Context) -> bytes:  # noqa: ARG002
        try:
            served = await self._reloads.unpin()
        except ServiceError as failure:
            await context.abort(failure.code, failure.text, failure.trailers)
        return UnpinResponse(
            snapshot_version=served.version, previous_pin=served.previous_pin
        ).SerializeToString()


def _parsed(message: bytes, kind: type[_Request]) -> _Request:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise malformed(kind.DESCRIPTOR.name) from None


def _folder(given: str) -> Path | None:
    if not given:
        return None
    if not given.startswith("/") or "\0" in given:
        fault = "not an absolute path; give that of a folder on the server's machine"
        raise invalid_field("checkpoint", fault)
    return Path(given)
