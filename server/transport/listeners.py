"""The three addresses that the server listens on: for clients, operators and Prometheus."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry

from grace.configs.serving import ServingConfig
from grace.index.updates.update import MOST_BYTES
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.observe.logs import LOG
from grace.server.observe.metrics_page import MetricsPage
from grace.server.server_state import ServerState
from grace.server.transport.addresses import address, fault_of, refusal
from grace.server.transport.admin import Admin
from grace.server.transport.certificates import WatchedCredentials
from grace.server.transport.front_end import FrontEnd
from grace.server.transport.listener.grpc_listener import GrpcListener
from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.relays.relays import Relays

ADMIN_CONNECTIONS, ADMIN_CALLS = 32, 64

QUIET_SECONDS = 2.0  # how long a server that closes waits at most for its clients to stop calling


class Listeners:
    def __init__(
        self,
        config: ServingConfig,
        front_end: FrontEnd,
        admin: Admin,
        died: Callable[[], None],  # called if gRPC, here or in a relay, ends unasked
        credentials: WatchedCredentials,
        # the time for calls that are on their way to come in and be refused; after the last call
        # has ended, also the time until the endless streams of watchers are cut
        settle_seconds: float = 0.2,
    ) -> None:
        self._config = config
        self._settle_seconds = settle_seconds
        self._front_end = front_end
        self._credentials = credentials
        services = DESCRIPTOR.services_by_name
        limits = ListenLimits.of(config)
        self._clients: GrpcListener | Relays
        if config.listen.front_ends:
            self._clients = Relays(config.listen.front_ends, front_end, limits, died)
        else:
            methods = {"Retrieve": front_end.retrieve}
            self._clients = GrpcListener(services["AdsRetrieval"], methods, limits)
        few = replace(
            limits,
            receive_bytes=MOST_BYTES,
            calls=ADMIN_CALLS,
            pending=ADMIN_CONNECTIONS * ADMIN_CALLS,
            connections=ADMIN_CONNECTIONS,
        )
        self._operators = GrpcListener(services["Admin"], admin.methods, few)
        self._page: MetricsPage | None = None
        self._died = died
        self._watches: list[asyncio.Task[None]] = []

    async def open(self, registry: CollectorRegistry, state: ServerState) -> str:
        """Bind all three and answer on them, health with NOT_SERVING. Return Retrieve's address."""
        listen, admin, metrics = self._config.listen, self._config.admin, self._config.metrics
        credentials = self._credentials
        retrieve = await self._clients.open("listen", listen.host, listen.port, credentials.listen)
        operators = await self._operators.open("admin", admin.host, admin.port, credentials.admin)
        here = (each for each in (self._clients, self._operators) if isinstance(each, GrpcListener))
        self._watches = [asyncio.create_task(self._watch(each)) for each in here]
        try:
            self._page = MetricsPage(metrics.host, metrics.port, registry, state)
        except (OSError, UnicodeError) as error:
            raise refusal("metrics", metrics.host, metrics.port, fault_of(error)) from None
        bound = {"retrieve": retrieve, "admin": operators}
        bound["metrics"] = address(metrics.host, self._page.port)
        LOG.info("listening", extra={**bound, "front_ends": listen.front_ends})
        return retrieve

    async def _watch(self, listener: GrpcListener) -> None:
        try:
            await listener.ended()
        except Exception as error:  # noqa: BLE001, whatever ends gRPC ends the service
            LOG.critical("grpc_died", exc_info=error)
            self._died()

    async def set_health(self, *, serving: bool) -> None:
        await asyncio.gather(
            self._clients.set_health(serving=serving), self._operators.set_health(serving=serving)
        )

    async def replies_left(self) -> None:
        """Wait until gRPC, here or in relays, has every reply that the pipeline reported before."""
        # One turn of the loop for the calls' tasks, which hand their replies on.
        await asyncio.sleep(0)
        if isinstance(self._clients, Relays):
            await self._clients.echo()

    async def finish_calls(self, seconds: float) -> bool:
        """Serve no new calls and give the others some time. Whether all ended within it."""
        # The front end refuses calls that are on their way, with a reason. Once gRPC is closing, it
        # cancels calls that the event loop has not seen yet.
        await asyncio.sleep(self._settle_seconds)
        await self._front_end.until_quiet(self._settle_seconds, QUIET_SECONDS)
        closing = asyncio.create_task(self._clients.close(seconds + self._settle_seconds))
        idle = asyncio.create_task(self._front_end.idle.wait())
        await asyncio.wait((idle,), timeout=seconds)
        finished = idle.done()
        await self._clients.close(self._settle_seconds if finished else None)
        await closing
        idle.cancel()
        return finished

    async def close(self) -> None:
        """Close what is still open, the metrics last."""
        await self._clients.close()
        await self._operators.close()
        if self._page is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._page.close)
            self._page = None
