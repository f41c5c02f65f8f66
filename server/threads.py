"""The server's threads: names that the kernel knows, for `top -H`, and threads that may hang."""

import asyncio
import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

_MOST_BYTES = 15  # longer names would be cut
_SET_NAME = 15  # prctl's PR_SET_NAME
_Result = TypeVar("_Result")


def name_this_thread(name: str) -> None:
    """Name the thread; the main thread's name is the process's as well.

    Python gives its threads' names to the kernel from 3.14 on. Before, a thread has the name of the
    one that started it.
    """
    encoded = name.encode()
    assert len(encoded) <= _MOST_BYTES, name
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, encoded, 0, 0, 0)


def daemon_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """Return a thread, not yet started, whose name Python and the kernel know."""

    def run() -> None:
        name_this_thread(name)
        work()

    return threading.Thread(target=run, name=name, daemon=True)


class DaemonThread:
    """Runs pieces of work one after another. It belongs to the event loop.

    Work that hangs, on a network folder for example, delays only the work after it. The process
    ends without waiting for it, but would wait for the loop's own pool.
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
            self._thread = daemon_thread(self._name, self._serve)
            self._thread.start()
        return asyncio.wrap_future(future)

    def _serve(self) -> None:
        while True:
            do = self._work.get()
            do()
            del do  # or it would keep its result alive
