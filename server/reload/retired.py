"""Frees the memory of old pairs on its own thread.

Returning gigabytes to the system takes longer than a batch. The thread that ends the last batch of
a pair must not wait for that.
"""

import threading
import weakref
from queue import SimpleQueue

from grace.server.engine.serving_pair import ServingPair
from grace.server.threads import name_this_thread


class Retired:
    """The pairs that the server has swapped out."""

    def __init__(self) -> None:
        self._parts: SimpleQueue[object] = SimpleQueue()
        threading.Thread(target=self._free, daemon=True).start()

    def add(self, pair: ServingPair) -> None:
        """Free the pair's parts once nothing else holds the pair, so its last batch has ended."""
        parts = (pair.snapshot, pair.index, pair.users, pair.matcher, pair.model)
        weakref.finalize(pair, self._parts.put, parts).atexit = False

    def _free(self) -> None:
        name_this_thread("grace-free")
        while True:
            self._parts.get()
