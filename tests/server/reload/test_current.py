"""Looks at CURRENT, on a thread of their own: its folder may hang."""

import asyncio
import threading
from pathlib import Path

import pytest

from grace.configs.errors import GraceError
from grace.index.storage import Published
from grace.server.errors import ServiceError
from grace.server.reload.current import Current
from support.pipeline_cases import LONG


def word(error: GraceError | OSError) -> str:
    return f"worded: {error}"


def test_a_look_that_hangs_is_reported_once_and_neither_loop_nor_operators_wait_for_it(
    tmp_path: Path,
) -> None:
    gate, begun, faults = threading.Event(), [], list[str]()

    def read(path: Path) -> Published:
        begun.append(path)
        assert gate.wait(LONG)
        return Published(7)

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read, look_seconds=0.05)
        watch = asyncio.ensure_future(current.look())
        await asyncio.sleep(0)
        calls = (current.versions, lambda: current.require(7), lambda: current.older(0, 7, None))
        for call in (*calls, current.look_now, *calls, current.look_now):
            with pytest.raises(ServiceError) as caught:
                await call()
            assert caught.value.reason == "load_failed"
            assert caught.value.text.startswith(f"snapshots: {tmp_path}: ")
            assert "could not be read within 0.05 s; check whether its file" in caught.value.text
        assert faults == [current.fault]
        gate.set()
        await watch
        assert (current.seen, current.fault) == (Published(7), "")
        assert await current.versions() == ()
        assert len(begun) == 1, "no look began while one hung"

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
