"""Find a broken stage: one that fails batch after batch, or that hangs.

A stage that hangs raises nothing, so its requests would wait forever. The watch counts time in
beats of the event loop. There are none while the process is stopped or the machine sleeps, so it
does not count the time that the stages lose.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.messages import STAGE_NAMES, PendingRequest, StageName

FAILURES_OF_A_BROKEN_STAGE = 3  # in a row

DEVICE_ERRORS = (torch.AcceleratorError, torch.cuda.CudaError)
"""After one of these, nothing that the device returns can be trusted."""


class FailedBatches:
    """Counts the batches that failed in one stage in a row.

    A request that fails alone in its batch counts once, however often its caller sends it again: it
    may be the only cause, and it must not take one server after the other down.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._alone: set[bytes] = set()

    def broken_by(self, error: BaseException, requests: Sequence[PendingRequest]) -> bool:
        """Count a batch that failed; return whether the stage is broken."""
        if isinstance(error, DEVICE_ERRORS) or not isinstance(error, Exception):
            return True
        if len(requests) == 1:
            request = RetrieveRequest.FromString(requests[0].retrieval.message)
            request.ClearField("request_id")  # all else is the same in every retry
            content = request.SerializeToString(deterministic=True)
            if content in self._alone:
                return False
            self._alone.add(content)
        self._counted += 1
        return self._counted >= FAILURES_OF_A_BROKEN_STAGE

    def clear(self) -> None:
        """Start again, after a batch that did not fail."""
        self._counted = 0
        self._alone.clear()


@dataclass(slots=True)
class _Work:
    """The requests that a stage works on, and for how many whole beats it has done so."""

    requests: Sequence[PendingRequest]
    beats: int = -1


class StageWatch:
    """Counts for how many beats each stage has worked on its batch.

    The thread of a stage calls `begin` and `end`; one thread calls `beat`.
    """

    def __init__(self, most: float) -> None:
        self._most = most  # how many beats a stage may work on one batch
        self._work: dict[StageName, _Work] = {name: _Work(()) for name in STAGE_NAMES}

    def begin(self, stage: StageName, requests: Sequence[PendingRequest]) -> None:
        self._work[stage] = _Work(requests)

    def end(self, stage: StageName) -> None:
        self._work[stage] = _Work(())

    def requests(self, stage: StageName) -> Sequence[PendingRequest]:
        return self._work[stage].requests

    def beat(self) -> StageName | None:
        """Return the stage that hangs, if one has worked on a batch for too many beats."""
        for work in self._work.values():
            work.beats += len(work.requests) > 0
        return next((name for name, work in self._work.items() if work.beats >= self._most), None)


def place_of(thread_name: str) -> TimeoutError:
    """Return an error with the traceback of where a thread is now, for the log."""
    known = {thread.name: thread.ident or 0 for thread in threading.enumerate()}
    frame, trace = sys._current_frames().get(known.get(thread_name, 0)), None  # noqa: SLF001
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return TimeoutError().with_traceback(trace)
