"""Where the pipeline's threads wait: the slot in front of a stage, and the turns of a stage."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Slot(Generic[Item]):
    """A queue of one batch between two stages."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._closed = False

    def put(self, item: Item) -> None:
        """Wait until the slot is empty, and fill it. After `abandon` the item is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is None or self._closed)
            if not self._closed:
                self._item = item
                self._changed.notify_all()

    def take(self) -> Item | None:
        """Wait for a batch and return it, or None once the slot is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is not None or self._closed)
            item, self._item = self._item, None
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Take no more batches. The stage that puts calls this after its last one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drop the batch in the slot, and all later ones."""
        with self._changed:
            self._item = None
            self.close()


class Turns:
    """Counts the pieces of work of one thread, so that others can wait until one has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = self._ended = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Enclose a piece of work."""
        with self._changed:
            self._begun += 1
        try:
            yield
        finally:
            with self._changed:
                self._ended += 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all work that has begun has ended, but not for later work."""
        with self._changed:
            begun = self._begun
            self._changed.wait_for(lambda: self._ended >= begun)
