"""gRPC in processes of its own: relays, which share one port and do nothing but pass bytes on.

The interpreter of a server's process is one, and gRPC takes more of it for a call than all else
that the event loop does. In relays it costs the server a few frames over a pair of sockets
(`server/transport/frames.py`). The kernel gives each relay some of the connections.
"""

import asyncio
import sys
from collections.abc import Callable

from grace.configs.errors import ConfigError
from grace.server.transport.addresses import address, held_port
from grace.server.transport.frames import Kind
from grace.server.transport.front_end import FrontEnd
from grace.server.transport.grpc_listener import HEALTH_SECONDS, ListenLimits
from grace.server.transport.relay import RelaySettings
from grace.server.transport.relay_process import RelayProcess

__all__ = ["Relays"]

START_SECONDS = 60.0


class Relays:
    """To its users one GrpcListener of the service for clients, whose method is the front end's.

    `died` is called if a relay ends before it is told to.
    """

    def __init__(
        self,
        count: int,
        front_end: FrontEnd,
        calls: int,
        limits: ListenLimits,
        died: Callable[[], None],
    ) -> None:
        self._count = count
        self._front_end = front_end
        self._calls = calls
        self._limits = limits
        self._died = died
        self._relays: list[RelayProcess] = []

    async def open(self, section: str, host: str, port: int) -> str:
        if sys.platform != "linux":
            raise ConfigError(
                f"{section}.front_ends: {self._count} processes can share a port, a clock and an "
                "end on Linux only; set it to 0"
            )
        with held_port(section, host, port) as held:
            settings = RelaySettings(host, held, self._calls, self._limits)
            for number in range(1, self._count + 1):
                name = f"{number} of {self._count}"
                relay = await RelayProcess.started(name, self._front_end, self._died)
                self._relays.append(relay)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await asyncio.gather(*(_listen(relay, settings) for relay in self._relays))
            except TimeoutError:
                raise ConfigError(
                    f"{section}.front_ends: {self._count} processes were not up after "
                    f"{START_SECONDS:g} s; take fewer, or a machine with more cores"
                ) from None
        return address(host, held)

    async def set_health(self, *, serving: bool) -> None:
        orders = [relay.order(Kind.HEALTH, {"serving": serving}) for relay in self._relays]
        told = [asyncio.ensure_future(order) for order in orders]
        _, late = await asyncio.wait(told, timeout=2 * HEALTH_SECONDS)
        for each in late:
            each.cancel()

    async def close(self, seconds: float | None = None) -> None:
        await asyncio.gather(*(relay.close(seconds) for relay in self._relays))


async def _listen(relay: RelayProcess, settings: RelaySettings) -> None:
    fault = await relay.greeted() or await relay.order(Kind.OPEN, settings.facts())
    if fault:
        raise ConfigError(fault)
