"""gRPC's health service, v1: Check and Watch.

It replaces grpcio's servicer, in which one watcher that does not read its stream blocks changes of
the status for all callers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse

from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.listener.slow_callers import (
    EndlessStreams,
    StreamContext,
    UnsentRequests,
    end_after,
    freed_if_aborted,
)

HEALTH = DESCRIPTOR.services_by_name["Health"]
EVERYTHING = ""
"""The name that stands for the whole server."""

MOST_BYTES = 1024
"""The most bytes of a request. grpc.aio keeps them for as long as the call is open."""


class _Context(StreamContext, Protocol):
    async def write(self, message: bytes) -> None: ...


class Health:
    """Reports NOT_SERVING for each service until `set`. Belongs to the event loop.

    As many callers may watch at once as there may be connections; `Watch` refuses further ones.
    """

    def __init__(
        self, services: Sequence[str], limits: ListenLimits, unsent: UnsentRequests
    ) -> None:
        self._watchers = EndlessStreams(limits.connections)
        self._reply_seconds = limits.reply_seconds
        self._unsent = unsent
        self._services = (EVERYTHING, *services)
        self._status = HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()

    def handlers(self) -> Any:
        """Return the generic handlers to add to a gRPC server."""
        unary: Any = grpc.unary_unary_rpc_method_handler
        stream: Any = grpc.unary_stream_rpc_method_handler
        check, watch = freed_if_aborted(self._check), freed_if_aborted(self._watch)
        methods = {
            "Check": unary(check, request_deserializer=self._unsent.came),
            "Watch": stream(watch, request_deserializer=self._unsent.came),
        }
        handler = grpc.method_handlers_generic_handler(HEALTH.full_name, methods)
        return self._unsent.watched(handler)

    def set(self, *, serving: bool) -> None:
        """Change the status of every service. Watchers are notified as they read."""
        serves, not_serves = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        self._status = serves if serving else not_serves
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, message: bytes, context: _Context) -> bytes:
        service = await _service(message, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name")
        task = asyncio.current_task()
        assert task is not None
        end_after(self._reply_seconds, task)
        return self._reply(service)

    async def _watch(self, message: bytes, context: _Context) -> None:
        service, last = await _service(message, context), b""
        await self._watchers.admit(context)
        while True:
            changed, reply = self._changed, self._reply(service)
            if reply != last:
                await context.write(reply)
            last = reply
            await changed.wait()

    def _reply(self, service: str) -> bytes:
        known = service in self._services
        status = self._status if known else HealthCheckResponse.SERVICE_UNKNOWN
        reply: bytes = HealthCheckResponse(status=status).SerializeToString()
        return reply


async def _service(message: bytes, context: _Context) -> str:
    """Return the service that the message names.

    If gRPC parsed the message, it would log an error for every call with faulty bytes.
    """
    if len(message) > MOST_BYTES:
        text = f"the request has {len(message)} bytes, at most {MOST_BYTES}; send fewer"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    try:
        service: str = HealthCheckRequest.FromString(message).service
    except DecodeError:
        text = f"the bytes are not a {HealthCheckRequest.DESCRIPTOR.full_name}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    return service
