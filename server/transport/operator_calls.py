"""How each call of Admin reads its request, and how it fails."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from grace.server.errors import ServiceError, internal, malformed, unknown_field
from grace.server.observe.logs import LOGGER
from grace.server.transport.listener.grpc_listener import GrpcContext, Method

MOST_SMALL_BYTES = 8192
"""The most bytes of a request that is read here, on the event loop."""

_LOG = logging.getLogger(LOGGER)
_Request = TypeVar("_Request", bound=Message)


def method_of(
    kind: type[_Request], answer: Callable[[_Request], Coroutine[Any, Any, Message | bytes]]
) -> Method:
    """Return the method that answers small requests of this kind."""

    async def reply(message: bytes, _: GrpcContext) -> bytes:
        answered = await answer(_read(kind, message))
        return answered if isinstance(answered, bytes) else answered.SerializeToString()

    return method_of_bytes(reply)


def method_of_bytes(reply: Method) -> Method:
    """Return the method that replies as `reply` does, or ends the call if it raises."""

    async def method(message: bytes, context: GrpcContext) -> bytes:
        try:
            return await reply(message, context)
        except ServiceError as error:
            # The traceback would keep what the call used, such as a batch and its pair.
            failure = error.with_traceback(None)
        except Exception as error:  # noqa: BLE001, the caller must not see its text
            _LOG.error("call_failed", exc_info=error)
            failure = internal()
        return await context.abort(failure.code, failure.text, failure.trailers)

    return method


def _read(kind: type[_Request], message: bytes) -> _Request:
    """Return the request. Refuse unknown fields: the server would carry out only a part of it."""
    name = kind.DESCRIPTOR.name
    if len(message) > MOST_SMALL_BYTES:
        text = f"the {name} has {len(message)} bytes, at most {MOST_SMALL_BYTES}; send fewer"
        raise ServiceError("too_large", text)
    try:
        request = kind.FromString(message)
    except DecodeError:
        raise malformed(name) from None
    unknown = UnknownFieldSet(request)
    if len(unknown):
        raise unknown_field(name, unknown[0].field_number, unknown[0].wire_type)
    return request
