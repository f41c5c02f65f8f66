"""Bound how many requests come in at once, for a listener whose requests may be large.

Until a call asks for its request, gRPC takes little of it (`ListenLimits.window_bytes`). Then gRPC
takes all that comes. So a call asks once it has a place, and keeps the place until its request has
come. Afterwards, its method has to bound the memory: calls that wait for each other must not wait
for places, too. A stream of reflection keeps its place to its end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from grace.server.transport.listener.slow_callers import end_of_this_call

PATIENCE_SECONDS = 5.0
"""While others wait, a call whose request takes longer to come loses its place, and ends."""


class RequestPlaces(grpc.aio.ServerInterceptor):
    """The places of a listener. The newest call goes first: its caller is most likely still there.

    It belongs to the event loop.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        # The time when a request began to come, and how to end its call.
        self._held: dict[asyncio.Task[Any], tuple[float, Callable[[], None]]] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # oldest first
        self._loop = asyncio.get_running_loop()
        self._sweeps = False

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the method of the current task's call, once the call has a place."""
        while not self._free:
            await self._turn()
        self._free -= 1
        task = asyncio.current_task()
        assert task is not None
        self._held[task] = (self._loop.time(), end_of_this_call())
        task.add_done_callback(self._give_back)
        method = await continuation(handler_call_details)
        if method is None or method.request_streaming:
            return method

        def came(message: bytes) -> Any:
            self._give_back(task)
            return method.request_deserializer(message)

        return method._replace(request_deserializer=came)

    async def _turn(self) -> None:
        """Wait until a place may be free."""
        turn = self._loop.create_future()
        self._waiting[turn] = None
        self._sweep_later()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            self._call_next()  # its turn may have come
            raise

    def _give_back(self, task: asyncio.Task[Any]) -> None:
        if task in self._held:
            del self._held[task]
            self._free += 1
            self._call_next()

    def _call_next(self) -> None:
        while self._free and self._waiting:
            turn, _ = self._waiting.popitem()
            if not turn.done():
                turn.set_result(None)
                return

    def _sweep_later(self) -> None:
        if not self._sweeps:
            self._sweeps = True
            self._loop.call_later(PATIENCE_SECONDS, self._sweep, self._loop.time())

    def _sweep(self, before: float) -> None:
        """End the oldest calls whose requests have not come since the last sweep."""
        self._sweeps = False
        # If this process stood still, requests have come that the loop has not read yet.
        if self._loop.time() < before + 1.5 * PATIENCE_SECONDS:
            late = [end for began, end in self._held.values() if began <= before]
            for end in late[: len(self._waiting)]:
                end()
        if self._waiting:
            self._sweep_later()
