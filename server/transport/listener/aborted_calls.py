"""Free a call as soon as its method aborts it, without a garbage collection.

The call's context keeps the error, the error's traceback keeps the method's frames, and these keep
the context. Python may collect this cycle late, because it does not see gRPC's 20 KiB of the call.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import grpc

_Message = TypeVar("_Message")
_Reply = TypeVar("_Reply")


def freed_if_aborted(
    method: Callable[[_Message, Any], Coroutine[Any, Any, _Reply]],
) -> Callable[[_Message, Any], Coroutine[Any, Any, _Reply]]:
    async def run(message: _Message, context: Any) -> _Reply:
        try:
            return await method(message, context)
        except grpc.aio.AbortError as error:
            del message, context
            raise error.with_traceback(None) from None

    return run


def stream_freed_if_aborted(
    method: Callable[[_Message, Any], AsyncIterator[_Reply]],
) -> Callable[[_Message, Any], AsyncIterator[_Reply]]:
    async def run(message: _Message, context: Any) -> AsyncIterator[_Reply]:
        try:
            async for reply in method(message, context):
                yield reply
        except grpc.aio.AbortError as error:
            del message, context
            raise error.with_traceback(None) from None

    return run
