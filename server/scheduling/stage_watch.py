"""Find a stage that hangs: it raises nothing, so its requests would wait forever.

The watch counts time in beats of the event loop. There are none while the process is stopped or the
machine sleeps, so it does not count the time that the stages lose.
"""

import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from grace.server.messages import STAGE_NAMES, PendingRequest, StageName


class StageWatch:
    """Counts for how many beats each stage has worked on its batch.

    The stages' threads call `begin` and `end`, each for its stage; one thread calls `beat`.

    requests  the requests that each stage works on
    most      the number of beats that a stage may work on one batch
    """

    def __init__(self, most: float) -> None:
        self.requests: dict[StageName, Sequence[PendingRequest]] = dict.fromkeys(STAGE_NAMES, ())
        self._most = most
        self._begun = dict.fromkeys(STAGE_NAMES, 0)
        self._beats: dict[StageName, tuple[int, int]] = dict.fromkeys(STAGE_NAMES, (0, 0))

    def begin(self, stage: StageName, requests: Sequence[PendingRequest]) -> None:
        self._begun[stage] += 1
        self.requests[stage] = requests

    def end(self, stage: StageName) -> None:
        self.requests[stage] = ()

    def beat(self) -> StageName | None:
        """Return the stage that hangs, if one has worked on a batch for too many beats.

        An earlier stage that waits to pass its batch on may have more beats than the stage that
        hangs. So the result is the last stage with at least half of `most`.
        """
        for stage in STAGE_NAMES:
            begun, beats = self._beats[stage]
            same = begun == self._begun[stage] and len(self.requests[stage]) > 0
            self._beats[stage] = self._begun[stage], beats + 1 if same else 0
        long = [stage for stage in STAGE_NAMES if self._beats[stage][1] >= self._most / 2]
        return long[-1] if any(self._beats[stage][1] >= self._most for stage in long) else None


def place_of(thread_name: str) -> TimeoutError:
    """Return an error with the traceback of where a thread is now, for the log."""
    known = {thread.name: thread.ident or 0 for thread in threading.enumerate()}
    frame, trace = sys._current_frames().get(known.get(thread_name, 0)), None  # noqa: SLF001
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return TimeoutError().with_traceback(trace)
