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
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left: list[threading.Thread] = []

    @property
    def hanging(self) -> int:
        """The number of threads whose work hung and has not ended yet."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

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
            self._thread = threading.Thread(target=self._serve, args=(self._work,), daemon=True)
            self._thread.start()
        return asyncio.wrap_future(future)

    async def run_unless_it_hangs(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """Return the result of the work. Raise TimeoutError if it makes no progress for `seconds`.

        Work that hangs uses no processor time on its thread. Slow work uses some for every piece of
        a file that it reads. Work that hangs keeps its thread; later work gets another one.
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
        self._left.append(self._thread)
        self._work.put(None)  # ends the thread, if the work ever does
        self._work, self._thread = SimpleQueue(), None
        raise TimeoutError

    def _serve(self, work: "SimpleQueue[Callable[[], None] | None]") -> None:
        name_this_thread(self._name)
        while (do := work.get()) is not None:
            do()
            del do  # or it would keep its result alive
