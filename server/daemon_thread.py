"""A thread that works for the event loop. The process can end while it hangs."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from grace.server.observe.thread_names import name_this_thread

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

    def _serve(self) -> None:
        name_this_thread(self._name)
        while True:
            do = self._work.get()
            do()
            del do  # or it would keep its result alive
