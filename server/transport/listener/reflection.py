"""gRPC's reflection, v1 and v1alpha, from which grpcurl and ghz learn services and messages.

The two versions have equal messages under two names. Clients ask for v1 first, but grpcio has only
v1alpha.
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
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.listener.slow_callers import EndlessStreams

V1ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
V1 = V1ALPHA.replace("v1alpha", "v1")


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
    """Parse a request; make faulty bytes an empty one, whose reply is an error.

    If this raised, gRPC would log an error for every such call.
    """
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
