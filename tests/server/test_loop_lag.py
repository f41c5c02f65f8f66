"""The lag of the event loop: what a callback that does not give way costs all others."""

import asyncio
import time
from unittest.mock import patch

from grace.server.observe.loop_lag import LoopLag

BLOCKED_SECONDS = 0.3


def test_a_loop_that_was_blocked_is_told_as_late_and_later_is_not() -> None:
    lag = LoopLag()

    async def block() -> None:
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.01)
        time.sleep(BLOCKED_SECONDS)
        while lag.worst() < BLOCKED_SECONDS / 2:
            await asyncio.sleep(0.01)
        while lag.worst() >= BLOCKED_SECONDS / 2:  # two windows later it is forgotten
            await asyncio.sleep(0.01)
        watch.cancel()

    assert lag.worst() == 0
    with patch("grace.server.observe.loop_lag._WINDOW_SECONDS", 0.2):
        asyncio.run(asyncio.wait_for(block(), 30))
