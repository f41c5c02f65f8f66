"""Looks at CURRENT, on a thread of their own, and the decision which version to serve."""

import asyncio
import threading
from pathlib import Path

import pytest

from grace.configs.errors import GraceError
from grace.index.storage import Published
from grace.server.errors import ServiceError
from grace.server.reload.current import Current
from grace.server.reload.decision import Pin, decide, pin_for
from support.pipeline_cases import LONG


def word(error: GraceError | OSError) -> str:
    return f"worded: {error}"


def test_a_look_that_hangs_is_reported_once_and_the_loop_runs_on(tmp_path: Path) -> None:
    gate, begun, faults = threading.Event(), [], list[str]()

    def read(path: Path) -> Published:
        begun.append(path)
        assert gate.wait(LONG)
        return Published(7)

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read, look_seconds=0.05)
        watch = asyncio.ensure_future(current.look())
        while not current.fault:
            await asyncio.sleep(0.01)
        for _ in range(3):
            with pytest.raises(ServiceError) as caught:
                await current.look_now()
            assert caught.value.reason == "load_failed"
            assert caught.value.text == current.fault
        (fault,) = faults
        assert fault.startswith(f"snapshots: {tmp_path}: CURRENT could not be read within 0.05 s;")
        gate.set()
        await watch
        assert (current.seen, current.fault) == (Published(7), "")
        await current.look_now()
        assert len(begun) == 2, "no look began while one hung"

    asyncio.run(use())


def test_the_versions_of_a_root_that_hangs_are_not_waited_for(tmp_path: Path) -> None:
    """An operator's call that waited for them would delay every later one."""
    gate = threading.Event()

    def read(_: Path) -> Published:
        assert gate.wait(LONG)
        return Published(7)

    async def use() -> None:
        current = Current(tmp_path, word, lambda _: None, read, look_seconds=0.05)
        watch = asyncio.ensure_future(current.look())
        await asyncio.sleep(0)
        for listing in (current.versions(), current.require(7), current.older(0, 7, None)):
            with pytest.raises(ServiceError) as caught:
                await listing
            assert caught.value.reason == "load_failed"
            assert f"{tmp_path}: " in caught.value.text
            assert "could not be read within 0.05 s; check whether its file" in caught.value.text
        gate.set()
        await watch
        assert await current.versions() == ()

    asyncio.run(use())


def test_a_look_that_breaks_is_a_fault_and_the_next_one_follows(tmp_path: Path) -> None:
    """An exception here would end the task that follows CURRENT, and nobody would see it."""
    broken, faults = [True], list[str]()

    def read(_: Path) -> Published:
        if broken.pop():
            raise MemoryError("of a secret")
        return Published(3)

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read)
        await current.look()
        assert faults == ["internal error (MemoryError); the server's log has its place"]
        broken.append(False)
        await current.look_now()
        assert (current.seen, current.fault) == (Published(3), "")

    asyncio.run(use())


NOW, LATER = (7, 1), (8, 2)  # marks of two publishes
SEVEN, NINE, PIN = Published(7, NOW), Published(9, NOW), Pin(version=7, until_above=9)
DECISIONS = {
    "a newer version": (Published(11, LATER), SEVEN, None, 7, 11),
    "an older version": (Published(3, LATER), SEVEN, None, 7, 3),
    "the served version again": (Published(7, LATER), SEVEN, None, 7, None),
    "no version": (Published(None), SEVEN, None, 7, None),
    "a version that failed": (NINE, NINE, None, 7, None),
    "a version that failed and was published again": (Published(9, LATER), NINE, None, 7, 9),
    "a version that failed, on request": (NINE, None, None, 7, 9),
    "what CURRENT named before an operator's load": (NINE, NINE, None, 5, None),
    "the version that a rollback left": (Published(9, LATER), None, PIN, 7, None),
    "a version above it": (Published(10, LATER), None, PIN, 7, 10),
    "a pin at the start": (Published(9, LATER), None, PIN, None, 7),
}


@pytest.mark.parametrize(
    ("seen", "acted_on", "pin", "served", "loads"), DECISIONS.values(), ids=DECISIONS
)
def test_what_current_names_is_loaded_or_not(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int, loads: int | None
) -> None:
    assert decide(seen, acted_on, pin, served) == loads


@pytest.mark.parametrize(
    ("seen", "before", "until_above"),
    [(None, None, 9), (Published(12), None, 12), (SEVEN, Pin(3, 11), 11)],
)
def test_a_pin_outlasts_what_was_served_what_current_names_and_the_pin_before(
    seen: Published | None, before: Pin | None, until_above: int
) -> None:
    assert pin_for(7, 9, seen, before) == Pin(7, until_above)
