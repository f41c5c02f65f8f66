"""gRPC's standard services: health, and reflection, from which grpcurl and ghz learn services.

The health service, v1, replaces grpcio's servicer, in which one watcher that does not read its
stream blocks changes of the status for all callers.

The two versions of reflection, v1 and v1alpha, have equal messages under two names. Clients ask for
v1 first, but grpcio has only v1alpha.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.listener.slow_callers import (
    EndlessStreams,
    StreamContext,
    UnsentRequests,
    WatchedMethods,
    end_after,
    freed_if_aborted,
)

HEALTH = DESCRIPTOR.services_by_name["Health"]
EVERYTHING = ""  # the name that stands for the whole server

MOST_BYTES = 1024
"""The most bytes of a request. grpc.aio keeps them for as long as the call is open."""

V1ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
V1 = V1ALPHA.replace("v1alpha", "v1")


class Health:
    """Reports NOT_SERVING for a service, and for the whole server, until `set`.

    It belongs to the event loop.

    As many callers may watch at once as there may be connections; `Watch` refuses further ones.
    """

    def __init__(self, service: str, limits: ListenLimits, unsent: UnsentRequests) -> None:
        self._watchers = EndlessStreams(limits.connections)
        self._reply_seconds = limits.reply_seconds
        self._unsent = unsent
        self._services = (EVERYTHING, service)
        self._status = HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()

    def handlers(self) -> Any:
        unary: Any = grpc.unary_unary_rpc_method_handler
        stream: Any = grpc.unary_stream_rpc_method_handler
        check, watch = freed_if_aborted(self._check), freed_if_aborted(self._watch)
        methods = {
            "Check": unary(check, request_deserializer=self._unsent.came),
            "Watch": stream(watch, request_deserializer=self._unsent.came),
        }
        handler = grpc.method_handlers_generic_handler(HEALTH.full_name, methods)
        return WatchedMethods(handler, self._unsent)

    def set(self, *, serving: bool) -> None:
        """Change the status. Watchers are notified as they read."""
        serves, not_serves = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        self._status = serves if serving else not_serves
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, message: bytes, context: StreamContext) -> bytes:
        service = await _service(message, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name")
        task = asyncio.current_task()
        assert task is not None
        end_after(self._reply_seconds, task)
        return self._reply(service)

    async def _watch(self, message: bytes, context: StreamContext) -> None:
        service, last = await _service(message, context), b""
        await self._watchers.admit(context)
        while True:
            changed, reply = self._changed, self._reply(service)
            if reply != last:
                await context.write(reply)
            last = reply
            await changed.wait()

    def _reply(self, service: str) -> bytes:
        status = self._status if service in self._services else HealthCheckResponse.SERVICE_UNKNOWN
        reply: bytes = HealthCheckResponse(status=status).SerializeToString()
        return reply


async def _service(message: bytes, context: StreamContext) -> str:
    """Return the service that the message names. gRPC itself would log every faulty message."""
    if len(message) > MOST_BYTES:
        text = f"the request has {len(message)} bytes, at most {MOST_BYTES}; send fewer"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    try:
        service: str = HealthCheckRequest.FromString(message).service
    except DecodeError:
        text = f"the bytes are not a {HealthCheckRequest.DESCRIPTOR.full_name}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    return service


def reflection_handlers(
    services: Sequence[ServiceDescriptor], limits: ListenLimits
) -> tuple[Any, ...]:
    """Return generic handlers of both versions, which describe the services and themselves.

    As many streams may be open at once as there may be connections. A stream without a question for
    `reply_seconds` ends: gRPC keeps what has come of the next one.
    """
    names = (*(service.full_name for service in services), V1, V1ALPHA)
    files = _Files([service.file for service in services])
    answers, streams = aio.ReflectionServicer(names, pool=files), EndlessStreams(limits.connections)

    async def answer(questions: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await streams.admit(context)
        asked = _prompt(questions, limits.reply_seconds)
        async for reply in answers.ServerReflectionInfo(asked, context):
            yield reply

    handler: Any = grpc.stream_stream_rpc_method_handler(
        answer,
        request_deserializer=_question,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    return tuple(grpc.method_handlers_generic_handler(name, methods) for name in (V1, V1ALPHA))


async def _prompt(questions: AsyncIterator[Any], seconds: float) -> AsyncIterator[Any]:
    """Yield questions until none has come for a time."""
    with suppress(StopAsyncIteration, TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(questions), seconds)


def _question(message: bytes) -> reflection_pb2.ServerReflectionRequest:
    """Parse a request. Faulty bytes become an empty one, since gRPC would log an error for each."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(message)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()


class _Files:
    """A descriptor pool that also finds the file of a method, which ghz asks for."""

    def __init__(self, files: Sequence[FileDescriptor]) -> None:
        self._pool = DescriptorPool()
        for file in (*files, reflection_pb2.DESCRIPTOR):
            self._add(file)
        alpha = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
        alpha.options.Clear()
        text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
        self._pool.Add(text_format.Parse(text, FileDescriptorProto()))

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:  # noqa: N802, protobuf's name
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            return self._pool.FindMethodByName(name).containing_service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def _add(self, file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            self._add(dependency)
        self._pool.AddSerializedFile(file.serialized_pb)
