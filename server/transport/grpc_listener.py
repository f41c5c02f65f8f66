"""One gRPC server on one address: one service, health, reflection. Bytes come in and go out."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from grace.server.transport.addresses import address, held_port, refusal
from grace.server.transport.listen_limits import ListenLimits
from grace.server.transport.unread_replies import end_after, remember_creators

Method: TypeAlias = Callable[[bytes, "GrpcContext"], Coroutine[Any, Any, bytes]]
Trailers: TypeAlias = tuple[tuple[str, str], ...]

HEALTH_SECONDS = 1.0
"""How long a change of health waits for watchers: one may not read."""


class Context(Protocol):
    """What a call needs of gRPC, wherever its gRPC runs.

    unread  whether the call was ended because its caller did not read the reply in time
    """

    unread: bool

    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...
    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn: ...


class GrpcContext:
    """The context of a call whose gRPC runs in this process. Make it in the call's task."""

    def __init__(self, context: Any, reply_seconds: float) -> None:
        self.unread = False
        self._context = context
        self._reply_seconds = reply_seconds
        self._task: asyncio.Task[Any] | None = asyncio.current_task()

    def time_remaining(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left

    def peer(self) -> str:
        """Return the caller's end of the connection."""
        return str(self._context.peer())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        # gRPC's own callbacks would make the call part of a cycle, which only a collection frees.
        assert self._task is not None
        self._task.add_done_callback(lambda _: callback(self))

    def replies(self) -> None:
        """Give the caller its time to read the reply, from now on."""
        assert self._task is not None
        end_after(self._reply_seconds, self._task, self._give_up)

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn:
        self.replies()
        await self._context.abort(code, details, trailing_metadata)
        raise AssertionError("gRPC's abort raises")

    def _give_up(self) -> None:
        self.unread = True


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
        self._name = service.full_name
        self._shares_port = shares_port
        self._health = health.HealthServicer()
        remember_creators(asyncio.get_running_loop())
        self._server = grpc.aio.server(
            options=(("grpc.so_reuseport", int(shares_port)), *limits.options())
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(_answering(method, limits.reply_seconds))
            for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )
        add_HealthServicer_to_server(self._health, self._server)
        if limits.reflection:
            enable_server_reflection((service.full_name, HEALTH, REFLECTION), self._server)

    async def open(self, section: str, host: str, port: int) -> str:
        """Listen, and return `host:port` with the port that it has. Errors name `section`."""
        await self.set_health(serving=False)
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
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        changes = (self._health.set(name, status) for name in ("", self._name))
        await asyncio.wait(list(map(asyncio.ensure_future, changes)), timeout=HEALTH_SECONDS)

    async def close(self, seconds: float | None = None) -> None:
        """Take no new calls and give the others some time. A later call may shorten it."""
        await self._server.stop(seconds)


def _answering(method: Method, reply_seconds: float) -> Callable[[bytes, Any], Any]:
    """Return the method as gRPC calls it. It ends calls whose replies are not read in time."""

    async def answer(message: bytes, context: Any) -> bytes:
        call = GrpcContext(context, reply_seconds)
        reply = await method(message, call)
        call.replies()
        return reply

    return answer
