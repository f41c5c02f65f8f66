"""A fault of any kind while the server looks at CURRENT is reported, and it looks again."""

import asyncio
from pathlib import Path

from grace.configs.errors import GraceError
from grace.index.storage import Published
from grace.server.reload.current import Current


def word(error: GraceError | OSError) -> str:
    return f"worded: {error}"


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
