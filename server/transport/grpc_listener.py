"""One gRPC server on one address: a service of ours, health, reflection. Bytes in, bytes out."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from grace.server.transport.addresses import address, refusal, require_free

__all__ = ["HEALTH_SECONDS", "GrpcListener", "ListenLimits", "Method"]

Method: TypeAlias = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]

HEALTH_SECONDS = 1.0
"""To tell all watchers; one that does not read must not hold us up."""


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """streams  calls of one connection at once; its further calls wait at the client"""

    receive_bytes: int
    streams: int
    reflection: bool


class GrpcListener:
    """One gRPC server on one address: a service of ours, health and, if wanted, reflection.

    Requests come and replies go as bytes: parsing them is the service's business, and so are its
    errors. Health says NOT_SERVING until `set_health`. With `shares_port`, others like it may
    listen on its address, each having some of the connections.
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

    async def open(self, section: str, host: str, port: int) -> str:
        """Listens; `host:port` as it came out. `section` is the configuration's, for errors."""
        await self.set_health(serving=False)
        if not self._shares_port:
            require_free(section, host, port)
        try:
            bound = self._server.add_insecure_port(address(host, port))
        except RuntimeError:  # its text points to a log of gRPC's own
            raise refusal(section, host, port, "cannot be listened on") from None
        await self._server.start()
        return address(host, bound)

    async def set_health(self, *, serving: bool) -> None:
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        told = (self._health.set(name, status) for name in ("", self._name))
        await asyncio.wait([asyncio.ensure_future(each) for each in told], timeout=HEALTH_SECONDS)

    async def close(self, seconds: float | None = None) -> None:
        """Takes no calls any more and gives those under way so long; a later, shorter time wins."""
        await self._server.stop(seconds)
