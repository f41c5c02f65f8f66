"""Which calls have the places of a listener, and until when."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from grace.server.transport.listener.request_places import PATIENCE_SECONDS, RequestPlaces


class Calls:
    """Calls by name. `placed` are those that have had a place, in that order."""

    def __init__(self, places: int) -> None:
        self._places = RequestPlaces(places)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sends: dict[str, asyncio.Future[bytes]] = {}
        self.placed: list[str] = []

    async def begin(self, *names: str) -> None:
        for name in names:
            self._sends[name] = asyncio.get_running_loop().create_future()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await turns()

    def send(self, name: str, message: bytes) -> None:
        self._sends[name].set_result(message)

    def end(self, name: str) -> None:
        self._tasks[name].cancel()

    def ended(self, name: str) -> bool:
        return self._tasks[name].done()

    async def _call(self, name: str) -> None:
        async def found(_: object) -> Any:
            return grpc.unary_unary_rpc_method_handler(print, request_deserializer=bytes)

        method = await self._places.intercept_service(found, None)
        self.placed.append(name)
        method.request_deserializer(await self._sends[name])
        await asyncio.Event().wait()


async def turns() -> None:
    """Let every task go on until it waits."""
    for _ in range(9):
        await asyncio.sleep(0)


def run(places: int, use: Callable[[Calls], Awaitable[None]]) -> None:
    async def main() -> None:
        await use(Calls(places))

    asyncio.run(main())


def test_the_newest_call_gets_a_place_as_soon_as_a_request_has_come() -> None:
    async def use(calls: Calls) -> None:
        await calls.begin("a", "b", "c", "d")
        assert calls.placed == ["a", "b"]
        calls.send("a", b"request")
        await turns()
        assert calls.placed == ["a", "b", "d"]

    run(2, use)


@pytest.mark.parametrize("moment", range(7))
def test_a_call_that_gives_up_leaves_its_turn_to_another_one(moment: int) -> None:
    """Even if it gives up in the moment of its turn."""

    async def use(calls: Calls) -> None:
        await calls.begin("a", "b", "c")
        calls.end("a")
        for _ in range(moment):
            await asyncio.sleep(0)
        calls.end("c")
        await turns()
        assert calls.placed in (["a", "b"], ["a", "c", "b"])

    run(1, use)


def test_a_request_that_does_not_come_costs_its_call_the_place_only_while_others_wait() -> None:
    async def use(calls: Calls) -> None:
        await calls.begin("a", "b")
        await asyncio.sleep(PATIENCE_SECONDS)
        await calls.begin("c")
        while calls.placed != ["a", "b", "c"]:
            await asyncio.sleep(0.01)
        assert [calls.ended("a"), calls.ended("b"), calls.ended("c")] == [True, False, False]

    run(2, use)
