"""The three addresses that the server listens on: clients', operators', Prometheus'."""

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from grace.configs.serving import ServingConfig
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.observe.logs import LOGGER
from grace.server.observe.metrics_page import MetricsPage
from grace.server.transport.addresses import address, fault_of, refusal
from grace.server.transport.admin import Admin
from grace.server.transport.front_end import FrontEnd
from grace.server.transport.grpc_listener import GrpcListener, ListenLimits
from grace.server.transport.relays import Relays

__all__ = ["Listeners"]

OVERSIZE = 4
"""Messages up to so many times the limit are refused by us, with a reason; larger ones by gRPC."""

CONNECTIONS, LEAST_STREAMS = 4, 100
"""So many connections may use up `limits.open_calls`: one whose client does not read its replies
leaves places for others. Each may have a few streams beside calls, as health is watched on one."""

SETTLE_SECONDS = 0.2
"""For calls on their way here to come in and be refused; and again, when the last has ended, until
streams of watchers, which never end, are cut."""

_LOG = logging.getLogger(LOGGER)


class Listeners:
    """`died` is called if a process that holds gRPC ends without having been told to."""

    def __init__(
        self,
        config: ServingConfig,
        front_end: FrontEnd,
        admin: Admin,
        died: Callable[[], None],
    ) -> None:
        self._config = config
        self._front_end = front_end
        services = DESCRIPTOR.services_by_name
        limits = ListenLimits(
            receive_bytes=OVERSIZE * config.limits.message_bytes,
            streams=max(LEAST_STREAMS, config.limits.open_calls // CONNECTIONS),
            reflection=config.listen.reflection,
        )
        self._clients: GrpcListener | Relays
        if config.listen.front_ends:
            calls = config.limits.open_calls
            self._clients = Relays(config.listen.front_ends, front_end, calls, limits, died)
        else:
            methods = {"Retrieve": front_end.retrieve}
            self._clients = GrpcListener(services["AdsRetrieval"], methods, limits)
        self._operators = GrpcListener(services["Admin"], {"GetStatus": admin.get_status}, limits)
        self._page: MetricsPage | None = None

    async def open(self, registry: CollectorRegistry) -> None:
        """Binds all three and answers on them, health with NOT_SERVING."""
        listen, admin, metrics = self._config.listen, self._config.admin, self._config.metrics
        retrieve = await self._clients.open("listen", listen.host, listen.port)
        operators = await self._operators.open("admin", admin.host, admin.port)
        try:
            self._page = MetricsPage(metrics.host, metrics.port, registry)
        except (OSError, UnicodeError) as error:
            raise refusal("metrics", metrics.host, metrics.port, fault_of(error)) from None
        page = address(metrics.host, self._page.port)
        where = {"retrieve": retrieve, "admin": operators, "metrics": page}
        by = {"front_ends": listen.front_ends}
        _LOG.info("listening", extra={"event": "listening", **where, **by})

    async def set_health(self, *, serving: bool) -> None:
        await asyncio.gather(
            self._clients.set_health(serving=serving), self._operators.set_health(serving=serving)
        )

    async def finish_calls(self, seconds: float) -> bool:
        """Those under way have so long; new ones are not served. Whether all ended in time."""
        # What is on its way here is refused by the front end, with a reason: gRPC, once it is
        # closing, would drop some of it as cancelled.
        await asyncio.sleep(SETTLE_SECONDS)
        closing = asyncio.create_task(self._clients.close(seconds + SETTLE_SECONDS))
        idle = asyncio.create_task(self._front_end.until_idle(self._config.listen.reply_seconds))
        await asyncio.wait((idle,), timeout=seconds)
        finished = idle.done()
        await self._clients.close(SETTLE_SECONDS if finished else None)
        await closing
        idle.cancel()
        if finished and idle.result():
            fields = {"event": "replies_unread", "calls": idle.result()}
            _LOG.warning("replies_unread", extra=fields)
        return finished

    async def close(self) -> None:
        """What is still open; the metrics last."""
        await self._clients.close()
        await self._operators.close()
        if self._page is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._page.close)
            self._page = None
