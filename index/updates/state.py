"""The state that updates make: stopped ids by level, live weights, and ads put or removed.

The state belongs to no snapshot. It keeps ids that no snapshot knows, because a later one may.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby, takewhile
from typing import NamedTuple

import numpy as np

from grace.configs.errors import GraceError, RequestError
from grace.index.updates.id_map import IdMap, distinct
from grace.index.updates.update import AdUpdate, Change, Ids, changes_message, full_message

MOST_STATE_IDS = 16_000_000
"""The most stopped ids and weights that the state may hold, all levels together."""

MOST_CHANGES, MOST_ROW_BYTES = 4_000_000, 1 << 30
"""The most ads that the state may have as put or removed, and the most bytes of their rows."""

_ENTITIES = "stop entities rather than their ads"
BUILD = "build and publish a snapshot with --updates-watermark"
_PART_CHANGES, _PART_BYTES = 20_000, 4 << 20  # in one message of the log

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
        super().__init__(f"sequence: {text}; {remedy} a FULL update with the whole state")


@dataclass(frozen=True, slots=True)
class Touched:
    """The ids that some updates named."""

    everything: bool  # one of the updates was FULL, so that any id may have changed
    stops: Mapping[str, Ids] = field(default_factory=dict)  # stopped or resumed, by level
    weights: Ids = field(default_factory=lambda: np.empty(0, np.int64))  # set or removed


class ChangedAds:
    """The last change of each ad, in the order of the updates that they come from.

    last        the number of the last update that changed ads, or took changes back
    rebased     the number of the last update that took changes back: who shows older ones must
                begin with the snapshot again
    row_bytes   the size of all rows
    """

    def __init__(self) -> None:
        self.last = self.rebased = self.row_bytes = 0
        # Plain tuples of numbers and bytes: the garbage collector need not look at them.
        self._of: dict[int, tuple[int, bytes | None]] = {}
        self._before = self._of

    def __len__(self) -> int:
        return len(self._of)

    def has(self, ad_id: int, in_snapshot: bool) -> bool:
        """Return whether the server has an ad, be it only as a put that waits."""
        change = self._of.get(ad_id)
        return in_snapshot if change is None else change[1] is not None

    def apply(self, update: AdUpdate) -> None:
        if not update.changes_ads:
            return
        if update.full and update.part <= 1:
            self._before, self._of, self.row_bytes = self._of, {}, 0
        rows = zip(update.put_ids, update.put, strict=True)
        for ad_id, row in (*rows, *((ad_id, None) for ad_id in update.remove.tolist())):
            self._forget(ad_id)  # so that this change comes after all others
            self._of[ad_id] = update.changed_at, row
            self.row_bytes += len(row or b"")
        if update.part < update.parts:
            return
        if update.full:
            self._of = dict(sorted(self._of.items(), key=lambda item: item[1][0]))
            if self._takes_back(update.sequence):
                self.rebased = self.last = update.sequence
            self._before = self._of
        if self._of:
            self.last = max(self.last, self._of[next(reversed(self._of))][0])

    def after(self, sequence: int) -> list[Change]:
        """Return the changes that come from later updates, the latest first."""
        later = takewhile(lambda item: item[1][0] > sequence, reversed(self._of.items()))
        return [(ad_id, row) for ad_id, (_, row) in later]

    def drop(self, through: int) -> int:
        """Forget changes up to an update. Return their number."""
        earlier = takewhile(lambda item: item[1][0] <= through, self._of.items())
        dropped = [ad_id for ad_id, _ in earlier]
        for ad_id in dropped:
            self._forget(ad_id)
        return len(dropped)

    def groups(self) -> Iterator[tuple[int, Sequence[Change]]]:
        """Yield the changes by the update that they come from, in pieces of bounded size."""
        for changed_at, items in groupby(self._of.items(), key=lambda item: item[1][0]):
            group: list[Change] = []
            size = 0
            for ad_id, (_, row) in items:
                size += len(row or b"")
                if group and (len(group) == _PART_CHANGES or size > _PART_BYTES):
                    yield changed_at, group
                    group, size = [], len(row or b"")
                group.append((ad_id, row))
            yield changed_at, group

    def _forget(self, ad_id: int) -> None:
        known = self._of.pop(ad_id, None)
        if known is not None:
            self.row_bytes -= len(known[1] or b"")

    def _takes_back(self, sequence: int) -> bool:
        """Return whether a snapshot with the changes before would need others than those of this
        update."""
        before = self._before
        if any(ad_id not in self._of for ad_id in before):
            return True
        return any(
            changed_at < sequence and before.get(ad_id) != (changed_at, row)
            for ad_id, (changed_at, row) in self._of.items()
        )


class UpdateState:
    """The state after the update `sequence`. It is not thread-safe."""

    def __init__(self) -> None:
        self.sequence = 0
        self.stopped: dict[str, IdMap] = {}  # sets by level; none is empty
        self.weights = IdMap(NO_WEIGHT)  # by ad id
        self.ads = ChangedAds()

    @property
    def size(self) -> "Size":
        ids = sum(map(len, self.stopped.values())) + len(self.weights)
        return Size(ids, len(self.ads), self.ads.row_bytes)

    def apply(self, update: AdUpdate) -> bool:
        """Apply an update. Return False if its number was in force before, so nothing changes.

        Apply all parts of an update in turn: it is in force with the last one.
        """
        if update.sequence <= self.sequence:
            return False
        require_after(self.sequence, update)
        if update.full and update.part <= 1:
            self.stopped, self.weights = {}, IdMap(NO_WEIGHT)
        for present, levels in ((True, update.stop), (False, update.resume)):
            for level, ids in levels.items():
                self.stopped.setdefault(level, IdMap(np.False_)).put(ids, present)
                if not len(self.stopped[level]):
                    del self.stopped[level]
        self.weights.put(update.weighted, update.weights)
        self.weights.put(update.unweight, NO_WEIGHT)
        self.ads.apply(update)
        if update.part == update.parts:
            self.sequence = update.sequence
        return True

    def full_messages(self) -> Iterator[bytes | memoryview]:
        """Yield the FULL update that makes this state, in as many parts as it needs."""
        stopped = {level: ids.sorted_ids() for level, ids in self.stopped.items()}
        number, parts = self.sequence, sum(1 for _ in self.ads.groups())
        parts += parts > 0  # the first has stops and weights
        yield full_message(number, stopped, *self.weights.items(), parts)
        for part, (changed_at, changes) in enumerate(self.ads.groups(), start=2):
            yield changes_message(number, part, parts, changed_at, changes)


class Size(NamedTuple):
    """How much a state has, or at most: stopped ids and weights, changed ads, bytes of rows."""

    ids: int = 0
    changes: int = 0
    row_bytes: int = 0

    def with_(self, update: AdUpdate) -> "Size":
        ids = self.ids + sum(map(len, update.stop.values())) + len(update.weighted)
        changes = self.changes + len(update.put) + len(update.remove)
        return Size(ids, changes, self.row_bytes + sum(map(len, update.put)))


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


def require_room(size: Size, updates: Sequence[AdUpdate]) -> Size:
    """Return the most that a state of this size can have after the updates of one number.

    Raise RequestError if that is too much.
    """
    adds = reduce(Size.with_, updates, Size())
    after = adds if updates[0].full else reduce(Size.with_, updates, size)
    for name, added, found, most, things, remedy in (
        ("stop", adds.ids, after.ids, MOST_STATE_IDS, "stopped ids and weights", _ENTITIES),
        ("put", adds.changes, after.changes, MOST_CHANGES, "ads put or removed", BUILD),
        ("put", adds.row_bytes, after.row_bytes, MOST_ROW_BYTES, "bytes of ads put", BUILD),
    ):
        if added and found > most:
            fault = f"up to {found} {things} after this update, at most {most}: {remedy}"
            raise RequestError(name, fault)
    return after
