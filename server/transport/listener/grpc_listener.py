"""One gRPC server on one address: one service, health, reflection. Bytes come in and go out."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from grace.configs.errors import ConfigError
from grace.server.transport.addresses import address, held_port, refusal
from grace.server.transport.certificates import CertificateFiles, server_credentials
from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.listener.slow_callers import (
    UnsentRequests,
    WatchedMethods,
    end_after,
    freed_if_aborted,
    remember_creators,
)
from grace.server.transport.listener.standard_services import HEALTH, Health, reflection_handlers

Method: TypeAlias = Callable[[bytes, "GrpcContext"], Coroutine[Any, Any, bytes]]
Trailers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A call's message and what came with it. Times are by `perf_counter`."""

    arrived: float  # when it came in
    deadline: float  # when its caller stops waiting, or infinity
    connection: str  # the caller's end of the connection, as gRPC spells it
    message: bytes = field(repr=False)


class Context(Protocol):
    """What a call needs from gRPC, in this process or in a relay."""

    unread: bool  # whether the call was ended because its caller did not read the reply in time

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

    def incoming(self, message: bytes) -> IncomingCall:
        """Return the call as it came in just now."""
        arrived = perf_counter()
        left: float | None = self._context.time_remaining()
        deadline = math.inf if left is None else arrived + left
        return IncomingCall(arrived, deadline, str(self._context.peer()), message)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        # A callback of gRPC's would put the call into a cycle, freed only by a garbage collection.
        assert self._task is not None
        self._task.add_done_callback(lambda _: callback(self))

    def replies(self) -> None:
        """Start the time that the caller has to read the reply."""
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
        self._shares_port = shares_port
        unsent = UnsentRequests(limits.reply_seconds, max(limits.connections, limits.calls))
        self._health = Health(service.full_name, limits, unsent)
        self._changing = asyncio.Lock()  # gRPC crashes if a server is stopped while it starts
        remember_creators(asyncio.get_running_loop())
        self._server = grpc.aio.server(
            options=(("grpc.so_reuseport", int(shares_port)), *limits.options())
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(method, limits.reply_seconds), request_deserializer=unsent.came
            )
            for name, method in methods.items()
        }
        served = grpc.method_handlers_generic_handler(service.full_name, handlers)
        reflection = reflection_handlers((service, HEALTH), limits) if limits.reflection else ()
        self._server.add_generic_rpc_handlers(
            (WatchedMethods(served, unsent), self._health.handlers(), *reflection)
        )

    async def open(
        self, section: str, host: str, port: int, certificate: CertificateFiles | None = None
    ) -> str:
        """Listen, without a certificate in plaintext; return `host:port`. Errors name `section`."""
        if not self._shares_port:
            with held_port(section, host, port):
                pass  # so the port is free
        try:
            if certificate is None:
                bound = self._server.add_insecure_port(address(host, port))
            else:
                credentials = server_credentials(certificate)
                bound = self._server.add_secure_port(address(host, port), credentials)
        except RuntimeError:  # its text only points to gRPC's log
            if certificate is not None:  # the address is free, so the certificate is at fault
                raise ConfigError(
                    f"{section}.tls: gRPC cannot use this certificate; give one with an RSA, an "
                    "ECDSA (P-256, P-384, P-521) or an Ed25519 key"
                ) from None
            raise refusal(section, host, port, "cannot be listened on") from None
        async with self._changing:
            await self._server.start()
        return address(host, bound)

    async def set_health(self, *, serving: bool) -> None:
        self._health.set(serving=serving)

    async def ended(self) -> None:
        """Wait until it is closed. Raises gRPC's fault if gRPC ends by itself: it then has dropped
        all connections, and accepts no more."""
        await self._server.wait_for_termination()

    async def close(self, seconds: float | None = None) -> None:
        """Take no new calls and give the others some time. A later call may shorten it."""
        async with self._changing:
            pass  # wait until a start has ended
        await self._server.stop(seconds)


def _answering(method: Method, reply_seconds: float) -> Callable[[bytes, Any], Any]:
    """Return the method as gRPC calls it. It ends calls whose replies are not read in time."""

    async def answer(message: bytes, context: Any) -> bytes:
        call = GrpcContext(context, reply_seconds)
        reply = await method(message, call)
        call.replies()
        return reply

    return freed_if_aborted(answer)
