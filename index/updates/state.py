"""The state that updates make: the ids that are stopped at each level, and the live weights.

The state belongs to no snapshot. It keeps ids that no snapshot knows, because a later one may.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from grace.configs.errors import GraceError, RequestError
from grace.index.updates.id_map import IdMap, distinct
from grace.index.updates.update import AdUpdate, Ids, full_message

MOST_STATE_IDS = 16_000_000
"""The most stopped ids and weights that the state may hold, all levels together."""

NO_WEIGHT = np.float32(np.nan)

LAST_FREE, MOST_SKIPPED = 2**63 - 1, 2**32
"""A FULL update may have any number up to the first; above it, only skip as many as the second."""


class GapError(GraceError):
    """A DELTA that does not follow the last update."""

    def __init__(self, given: int, last: int, *, awaits_full: bool = False) -> None:
        if awaits_full:
            text = f"{given} is a DELTA, but the server has no updates yet and waits for a FULL one"
            remedy = "send"
        else:
            text, remedy = f"{given} does not follow {last}", f"send {last + 1}, or"
        super().__init__(f"sequence: {text}; {remedy} a FULL update with all stops and weights")


@dataclass(frozen=True, slots=True)
class Touched:
    """The ids that some updates named.

    everything  one of the updates was FULL, so that any id may have changed
    stops       ids that were stopped or resumed, by level
    weights     ads whose weight was set or removed
    """

    everything: bool
    stops: Mapping[str, Ids] = field(default_factory=dict)
    weights: Ids = field(default_factory=lambda: np.empty(0, np.int64))


class UpdateState:
    """The state after the update `sequence`. It is not thread-safe."""

    def __init__(self) -> None:
        self.sequence = 0
        self.stopped: dict[str, IdMap] = {}  # sets by level; none is empty
        self.weights = IdMap(NO_WEIGHT)  # by ad id

    def __len__(self) -> int:
        return sum(map(len, self.stopped.values())) + len(self.weights)

    def apply(self, update: AdUpdate) -> bool:
        """Apply an update. Return False if its number was in force before, so nothing changes."""
        if update.sequence <= self.sequence:
            return False
        require_after(self.sequence, update)
        if update.full:
            self.stopped, self.weights = {}, IdMap(NO_WEIGHT)
        for present, levels in ((True, update.stop), (False, update.resume)):
            for level, ids in levels.items():
                self.stopped.setdefault(level, IdMap(np.False_)).put(ids, present)
                if not len(self.stopped[level]):
                    del self.stopped[level]
        self.weights.put(update.weighted, update.weights)
        self.weights.put(update.unweight, NO_WEIGHT)
        self.sequence = update.sequence
        return True

    def full_message(self) -> memoryview:
        stopped = {level: ids.sorted_ids() for level, ids in self.stopped.items()}
        return full_message(self.sequence, stopped, *self.weights.items())


def require_after(last: int, update: AdUpdate, *, awaits_full: bool = False) -> None:
    """Raise GapError if the update is a DELTA that leaves a gap after number `last`."""
    if update.full or update.sequence <= last:
        return
    if update.sequence != last + 1 or awaits_full:
        raise GapError(update.sequence, last, awaits_full=awaits_full)


def require_numbers_left(last: int, update: AdUpdate) -> None:
    """Refuse a FULL update that leaves no numbers: the server could never take another update.

    `last` is the number of the last update in force.
    """
    most = max(LAST_FREE, last + MOST_SKIPPED)
    if update.full and update.sequence > most:
        fault = f"{update.sequence} leaves too few numbers for later updates, at most {most}"
        raise RequestError("sequence", f"{fault}: number updates 1, 2, 3, ...")


def touched_by(updates: Iterable[AdUpdate]) -> Touched:
    updates = list(updates)
    if any(update.full for update in updates):
        return Touched(everything=True)
    stops: dict[str, list[Ids]] = {}
    for update in updates:
        for levels in (update.stop, update.resume):
            for level, ids in levels.items():
                stops.setdefault(level, []).append(ids)
    weights = [ids for update in updates for ids in (update.weighted, update.unweight)]
    return Touched(
        everything=False,
        stops={level: distinct(np.concatenate(ids)) for level, ids in stops.items()},
        weights=distinct(np.concatenate(weights)) if weights else np.empty(0, np.int64),
    )


def require_room(size: int, update: AdUpdate) -> int:
    """Return the most ids that a state of `size` ids can have after the update.

    Raise RequestError if that is too many.
    """
    adds = sum(map(len, update.stop.values())) + len(update.weighted)
    after = adds if update.full else size + adds
    if adds and after > MOST_STATE_IDS:
        fault = (
            f"up to {after} stopped ids and weights after this update, at most {MOST_STATE_IDS}: "
            "stop entities rather than their ads"
        )
        raise RequestError("stop", fault)
    return after
