"""A thread that works for the event loop. The process can end while it hangs."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from grace.server.observe.thread_names import name_this_thread

LOOKS = 10
"""The looks in a row without progress after which a thread hangs. The event loop counts looks
rather than time, because the process itself may have been stopped."""

_Result = TypeVar("_Result")


class DaemonThread:
    """Runs one piece of work after the other. It belongs to the event loop.

    Work that hangs, on a network folder for example, delays only the work after it. The process
    does not wait for it at its end, while it would wait for the loop's own pool.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Queue the work, and return its future. Cancelling the future does not stop the work."""
        future: Future[_Result] = Future()
        future.set_running_or_notify_cancel()

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001, it is raised where the future is awaited
                future.set_exception(error)

        self._work.put(do)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        return asyncio.wrap_future(future)

    async def run_unless_it_hangs(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """Return the result of the work. Raise TimeoutError if the thread makes no progress for
        `seconds`.

        Work that hangs uses no processor time on its thread. Slow work uses some for every piece of
        a file that it reads.
        """
        result, used, idle = self.run(work), -1.0, 0
        assert self._thread is not None
        assert self._thread.ident is not None
        if sys.platform == "darwin":  # has no clock per thread; the process's seldom stands still
            clock = time.CLOCK_PROCESS_CPUTIME_ID
        else:
            clock = time.pthread_getcpuclockid(self._thread.ident)
        while idle < LOOKS:
            await asyncio.wait((result,), timeout=seconds / LOOKS)
            if result.done():
                return result.result()
            before, used = used, time.clock_gettime(clock)
            idle = idle + 1 if used == before else 0
        raise TimeoutError

    def _serve(self) -> None:
        name_this_thread(self._name)
        while True:
            do = self._work.get()
            do()
            del do  # or it would keep its result alive
