"""A bound on calls that may stay open as long as their connections: health watches, reflection."""

import asyncio
from collections import Counter
from typing import NoReturn, Protocol

import grpc

CONNECTIONS_TO_FILL = 64
"""How many connections together may hold all streams: one connection may hold only its share."""

LEAST_SHARE = 4
"""Streams that one connection may hold, however few there may be."""

REFUSAL = "too many streams like this are open; close some, or try again later"


class StreamContext(Protocol):
    def peer(self) -> str: ...
    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...


class EndlessStreams:
    """Counts the open streams of one kind. Belongs to the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._share = max(LEAST_SHARE, most // CONNECTIONS_TO_FILL)
        self._open = 0
        self._of_connection: Counter[str] = Counter()

    async def admit(self, context: StreamContext) -> None:
        """Count a stream as open until its task ends, or refuse it. Call this in its task."""
        connection, task = context.peer(), asyncio.current_task()
        assert task is not None
        if self._open >= self._most or self._of_connection[connection] >= self._share:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSAL)
        self._open += 1
        self._of_connection[connection] += 1
        task.add_done_callback(lambda _: self._ended(connection))

    def _ended(self, connection: str) -> None:
        self._open -= 1
        self._of_connection[connection] -= 1
        if not self._of_connection[connection]:
            del self._of_connection[connection]
