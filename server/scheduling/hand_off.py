"""What carries a batch from one stage's thread to the next."""

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from grace.server.messages import RequestBatch, StageName
from grace.server.scheduling.lanes import Mark

__all__ = ["Carried", "HandOff", "Timed"]

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Timed:
    stage: StageName
    begin: Mark
    end: Mark


@dataclass(frozen=True, slots=True)
class Carried(Generic[Batch]):
    """A batch on its way to the next stage, readable once the last mark has passed.

    held  what the stages before made of it, which streams may still read
    """

    bound: RequestBatch
    batch: Batch
    times: tuple[Timed, ...]
    held: tuple[object, ...]


class HandOff(Generic[Batch]):
    """A queue of one batch between two stages."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batch: Carried[Batch] | None = None
        self._closed = False

    def put(self, batch: Carried[Batch]) -> None:
        """Waits for the place. A batch put after `abandon` is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch is None or self._closed)
            if not self._closed:
                self._batch = batch
                self._changed.notify_all()

    def take(self) -> Carried[Batch] | None:
        """Waits for a batch. None once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch is not None or self._closed)
            batch, self._batch = self._batch, None
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """By who puts: nothing follows."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops what is in it, and whatever follows."""
        with self._changed:
            self._batch = None
            self.close()
