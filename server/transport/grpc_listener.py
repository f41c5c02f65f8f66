"""One gRPC server on one address: one service, health, reflection. Bytes come in and go out."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from grace.server.transport.addresses import address, held_port, refusal
from grace.server.transport.health import HEALTH, Health
from grace.server.transport.reflection import reflection_handlers

Method: TypeAlias = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]
Trailers: TypeAlias = tuple[tuple[str, str], ...]


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that a call needs, wherever its gRPC runs."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...
    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn: ...


class GrpcContext(Context, Protocol):
    """The context of a call whose gRPC runs in this process."""

    def time_remaining(self) -> float | None: ...  # gRPC's own types leave the None out
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """streams  calls of one connection at once; its further calls wait at the client"""

    receive_bytes: int
    streams: int
    reflection: bool


class GrpcListener:
    """A gRPC server with one service, health and, if wanted, reflection.

    Requests and replies are bytes: the service's methods parse them and word its errors. Health
    says NOT_SERVING until `set_health`. With `shares_port`, other listeners may have the same
    address, and the kernel gives each some of the connections.
    """

    def __init__(
        self,
        service: ServiceDescriptor,
        methods: Mapping[str, Method],
        limits: ListenLimits,
        *,
        shares_port: bool = False,
    ) -> None:
        assert set(methods) == set(service.methods_by_name), service.full_name
        self._shares_port = shares_port
        self._health = Health((service.full_name,))
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.max_concurrent_streams", limits.streams),
                ("grpc.max_receive_message_length", limits.receive_bytes),
                ("grpc.max_send_message_length", -1),
            )
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(_freed(method))
            for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(service.full_name, handlers),
                self._health.handlers(),
                *(reflection_handlers((service, HEALTH)) if limits.reflection else ()),
            )
        )

    async def open(self, section: str, host: str, port: int) -> str:
        """Listen, and return `host:port` with the port that it has. Errors name `section`."""
        if not self._shares_port:
            with held_port(section, host, port):
                pass  # so the port is free
        try:
            bound = self._server.add_insecure_port(address(host, port))
        except RuntimeError:  # its text only points to gRPC's log
            raise refusal(section, host, port, "cannot be listened on") from None
        await self._server.start()
        return address(host, bound)

    async def set_health(self, *, serving: bool) -> None:
        self._health.set(serving=serving)

    async def close(self, seconds: float | None = None) -> None:
        """Take no new calls and give the others some time. A later call may shorten it."""
        await self._server.stop(seconds)


def _freed(method: Method) -> Method:
    """Return the method such that a call that it aborts is freed at once, not by a collection."""

    async def call(message: bytes, context: Any) -> bytes:
        try:
            return await method(message, context)
        except grpc.aio.AbortError as error:
            # The context keeps the error, whose traceback would keep the frames and the context.
            del message, context
            raise error.with_traceback(None) from None

    return call
