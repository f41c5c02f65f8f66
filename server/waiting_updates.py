"""Updates whose callers wait: read for the served snapshot, and kept until all parts are there."""

from collections import Counter
from collections.abc import Set
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from grace.configs.errors import RequestError
from grace.configs.machine import available_cores
from grace.index.snapshot import Snapshot
from grace.index.updates.puts import RefusedPut, take_puts
from grace.index.updates.state import BUILD, MOST_ROW_BYTES, ChangedAds
from grace.index.updates.update import MOST_BYTES, AdUpdate, read_update
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from grace.server.errors import not_ready
from grace.server.observe.logs import LOG

MOST_PART_BYTES = MOST_ROW_BYTES + 4 * MOST_BYTES
"""The most bytes of all parts of an update."""


@dataclass(frozen=True, slots=True)
class Updated:
    sequence: int  # of the last update in force
    # whether this update changed the state: not if its number was in force before, or if parts of
    # it are missing
    applied: bool
    update: AdUpdate | None = field(default=None, compare=False)
    refused: tuple[RefusedPut, ...] = ()  # its puts that are not in force
    absent: tuple[int, ...] = ()  # ads that it removes, but that the server did not have


@dataclass(slots=True, eq=False)
class Waiting:
    message: bytes
    arrived: float
    done: "Future[Updated]" = field(default_factory=Future)
    update: AdUpdate | None = None  # None until the message is read
    kept: bytes = b""  # what the log gets: the message without the puts that are refused
    refused: tuple[RefusedPut, ...] = ()
    absent: tuple[int, ...] = ()
    # all parts of its update, in order, once they are there; often only itself
    parts: "tuple[Waiting, ...]" = ()

    @property
    def read(self) -> AdUpdate:
        assert self.update is not None
        return self.update

    @property
    def sequence(self) -> int:
        return self.read.sequence

    @property
    def updates(self) -> list[AdUpdate]:
        return [part.read for part in self.parts]

    def read_with(self, snapshot: Snapshot | None, changes: ChangedAds) -> None:
        """Read the message, and its puts as ads of this snapshot, which may lack some changes.

        Raise RequestError if the update is faulty, and `not_ready` for puts without a snapshot.
        """
        update, self.kept = read_update(self.message), self.message
        if snapshot is not None:
            there = snapshot.ads.ordinals(update.remove) >= 0
            ads = zip(update.remove.tolist(), there.tolist(), strict=True)
            self.absent = tuple(ad_id for ad_id, there in ads if not changes.has(ad_id, there))
        if update.put:
            if snapshot is None:
                raise not_ready()
            taken = take_puts(snapshot, update.put, max(1, available_cores() // 2))
            ids = taken.ids
            # Of rows that were read together, no copy of a repeated id is taken.
            if repeated := [ad_id for ad_id, times in Counter(ids).items() if times > 1]:
                fault = f"ad {repeated[0]} is in two rows, whose values have other types; send one"
                raise RequestError("put", fault)
            if both := {*ids}.intersection(update.remove.tolist()):
                fault = f"{min(both)} is in put, too; send it in one of them"
                raise RequestError("remove", fault)
            refused = {each.place for each in taken.refused}
            rows = (row for place, row in enumerate(update.put) if place not in refused)
            update = replace(update, put=tuple(rows), put_ids=ids)
            self.refused = taken.refused
            if refused:
                self.kept = _without_puts(self.message, refused)
        self.update = update


class Parts:
    """The parts of one FULL update that is not complete yet, in order from the first."""

    def __init__(self) -> None:
        self._kept: list[Waiting] = []

    def all_of(self, waiting: Waiting) -> tuple[Waiting, ...]:
        """Return all parts of the update if this one completes it, or else nothing.

        The first part begins the update anew, and a part that does not follow drops those before
        it: so what one sender sends in order is never completed by parts of an earlier content.
        Raise RequestError for parts that are too large together.
        """
        update, kept = waiting.read, self._kept
        if not update.parts:
            return (waiting,)
        if kept and (update.part == 1 or not self._follows(waiting)):
            LOG.warning("parts_dropped", extra={"sequence": kept[0].sequence})
            kept.clear()
        if update.part == len(kept) + 1:
            kept.append(waiting)
        if sum(len(each.message) for each in kept) > MOST_PART_BYTES:
            kept.clear()
            fault = f"together they have more than {MOST_PART_BYTES} bytes: {BUILD}"
            raise RequestError("parts", fault)
        return tuple(kept) if len(kept) == update.parts else ()

    def _follows(self, waiting: Waiting) -> bool:
        """Return whether this is the next part, or one of the parts again."""
        first, place = self._kept[0], waiting.read.part - 1
        if (first.sequence, first.read.parts) != (waiting.sequence, waiting.read.parts):
            return False
        again = self._kept[place : place + 1]
        return again[0].message == waiting.message if again else place == len(self._kept)


def _without_puts(message: bytes, places: Set[int]) -> bytes:
    request = UpdateAdsRequest.FromString(message)
    kept = [row for place, row in enumerate(request.put) if place not in places]
    del request.put[:]
    request.put.extend(kept)
    return request.SerializeToString()
