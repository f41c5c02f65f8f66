"""One gRPC server on one address: one service, health, reflection. Bytes come in and go out."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from grace.configs.errors import ConfigError
from grace.server.transport.addresses import address, held_port, refusal
from grace.server.transport.tls import CertificateFiles, server_credentials

Method: TypeAlias = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]
Trailers: TypeAlias = tuple[tuple[str, str], ...]

HEALTH_SECONDS = 1.0
"""How long a change of health waits for watchers: one may not read."""


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
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def authorization_of(context: GrpcContext) -> str:
    """Return the call's first header `authorization`, or an empty text."""
    headers = context.invocation_metadata() or ()
    return next((str(value) for name, value in headers if name == "authorization"), "")


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """
    streams  calls of one connection at once; its further calls wait at the client
    tokens   whether calls of the service must show one
    """

    receive_bytes: int
    streams: int
    reflection: bool
    tokens: bool = False


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
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.max_concurrent_streams", limits.streams),
                ("grpc.max_receive_message_length", limits.receive_bytes),
                ("grpc.max_send_message_length", -1),
            )
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )
        add_HealthServicer_to_server(self._health, self._server)
        if limits.reflection:
            enable_server_reflection((service.full_name, HEALTH, REFLECTION), self._server)

    async def open(
        self, section: str, host: str, port: int, certificate: CertificateFiles | None = None
    ) -> str:
        """Listen, and return `host:port` with the port that it has. Errors name `section`.

        Connections are plaintext without a certificate.
        """
        await self.set_health(serving=False)
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
            if certificate is not None:  # the address itself is free
                raise ConfigError(
                    f"{section}.tls: gRPC cannot use this certificate; give one with an RSA, an "
                    "ECDSA (P-256, P-384, P-521) or an Ed25519 key"
                ) from None
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
