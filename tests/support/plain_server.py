"""The plain rules for a server that is operated in any order, and its plain replies."""

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch

from grace.model.checkpoints.checkpoint import checkpoint_id
from grace.model.checkpoints.init import write_random
from grace.proto.retrieval_pb2 import RetrieveResponse, UnknownIds, UpdateAdsRequest
from grace.server.engine.serving_pair import ServingPair
from support.fresh_ads import changed_pair, table_row, table_rows
from support.live_snapshots import LiveRoot
from support.oracle import RawAd
from support.plain_updates import PlainState, named
from support.retrieve_calls import Outcome
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import (
    JsonRequest,
    answer,
    load_cpu_pair,
    raw_ad,
    replies_of,
    request_batch,
    stop,
)

MOST_UNKNOWN = 10
"""The most ids of a level that a reply names."""


class RefusedError(Exception):
    """The plain server refuses a call, with the reason in `args`."""


@dataclass
class Plain:
    """What a server serves."""

    # the version that has the ads of a version
    like: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 2})
    # the updates_watermark of each version
    marks: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    bad: set[int] = field(default_factory=set)  # versions that cannot be loaded
    current: int = 1  # the version that CURRENT named when it was last read
    readable: bool = True  # whether CURRENT can be read now
    served: int = 1
    checkpoint: int = 0
    # the pinned version, and the version that CURRENT must exceed to end the pin
    pin: tuple[int, int] | None = None
    failed: int = 0  # the version whose failed load the server reports; 0: none
    loads: tuple[int, int] = (1, 0)  # how many loads succeeded and failed since the process began
    updates: PlainState = field(default_factory=PlainState)
    # how many updates were applied, repeated and refused since the process began
    results: Counter[str] = field(default_factory=Counter)

    @property
    def pin_is_passed(self) -> bool:
        return self.pin is not None and self.current > self.pin[1]

    @property
    def can_start(self) -> bool:
        return self.pin is not None or (self.readable and self.current not in self.bad)

    def serve(self, version: int, checkpoint: int | None = None) -> bool:
        """Return whether the server serves something else now."""
        ok, failed = self.loads
        if version in self.bad:
            self.failed, self.loads = version, (ok, failed + 1)
            raise RefusedError("load_failed")
        wanted = version, self.checkpoint if checkpoint is None else checkpoint
        changed = wanted != (self.served, self.checkpoint)
        self.served, self.checkpoint = wanted
        self.loads = ok + changed, failed
        if self.failed != self.current or version == self.current:
            self.failed = 0
        if self.pin_is_passed and self.served == self.current:
            self.pin = None
        return changed

    def publish(self, version: int) -> None:
        self.current, self.readable = version, True
        wanted = version if self.pin is None or self.pin_is_passed else self.pin[0]
        if wanted != self.served:
            with suppress(RefusedError):  # the old version serves on
                self.serve(wanted)
        elif version == self.served:
            self.failed = 0

    def lose_current(self) -> None:
        ok, failed = self.loads
        self.readable, self.loads = False, (ok, failed + 1)

    def look(self) -> None:
        if not self.readable:
            raise RefusedError("load_failed")

    def load(self, version: int, checkpoint: int | None) -> bool:
        if not version:
            self.look()
        pin = None if self.pin_is_passed else self.pin
        if version and pin is not None and version != pin[0]:
            raise RefusedError("load_refused")
        named = self.current if pin is None else pin[0]
        return self.serve(version or named, checkpoint)

    def roll_back(self, version: int) -> int:
        """Return the version that was served before."""
        before, pin = self.served, self.pin
        if pin is not None and version == pin[0]:
            return before  # once more, as a retry does
        older = [each for each in self.like if each < self.served]
        if version == 0 and older:
            version = older[-1]
        elif pin is not None and pin[1] > self.served:
            older = [each for each in self.like if each < pin[1]]
        if version not in older:
            raise RefusedError("load_refused")
        self.serve(version)
        self.pin = version, max(before, self.current, 0 if pin is None else pin[1])
        return before

    def unpin(self) -> int:
        """Return the version that was pinned."""
        self.look()
        before, self.pin = self.pin, None
        if self.current != self.served:
            self.serve(self.current)
        self.failed = 0
        return 0 if before is None else before[0]

    def update(self, update: UpdateAdsRequest) -> bool:
        """Return whether it is applied; one that has a number of before is not."""
        gap = (
            update.kind == UpdateAdsRequest.KIND_DELTA
            and update.sequence > self.updates.sequence + 1
        )
        applied = not gap and self.updates.apply(update)
        self.results["refused" if gap else "applied" if applied else "repeated"] += 1
        if gap:
            raise RefusedError("update_gap")
        return applied

    def restart(self) -> None:
        self.checkpoint, self.failed, self.loads = 0, 0, (1, 0)
        self.results.clear()
        if not self.readable:
            assert self.pin is not None
            self.served, self.current, self.loads = self.pin[0], 0, (1, 1)
        elif self.pin is None or (self.pin_is_passed and self.current not in self.bad):
            self.served, self.pin = self.current, None
        else:
            self.served = self.pin[0]
            if self.pin_is_passed:
                self.failed, self.loads = self.current, (1, 1)


Changes: TypeAlias = frozenset[tuple[int, int, str | None]]
"""Ad ids with the numbers of their last changes and their rows; None removed the ad."""


@dataclass(frozen=True)
class Live:
    """What updates change for requests: the levels and ids that are stopped, weights, and ads."""

    stopped: frozenset[tuple[str, int]] = frozenset()
    weights: frozenset[tuple[int, float]] = frozenset()
    changes: Changes = frozenset()
    settled: bool = True  # whether the ads do not change just now

    @staticmethod
    def under(updates: PlainState) -> "Live":
        changes = frozenset((ad_id, *change) for ad_id, change in updates.changes.items())
        return Live(frozenset(updates.stopped), frozenset(updates.weights.items()), changes)

    def stops(self, ads: Iterable[RawAd]) -> set[int]:
        return {ad.ad_id for ad in ads if self.stopped & {("ad", ad.ad_id), *ad.entities.items()}}


@dataclass(frozen=True)
class Seen:
    """A call's outcome, and the state of updates before and after it.

    A state has two steps for each update, begun and acknowledged, and what is live in any case.
    """

    request: int
    before: tuple[int, Live]
    after: tuple[int, Live]
    outcome: Outcome


@dataclass(frozen=True)
class Catalogue:
    """The ads of version 1 or 2 with changes that are later than a version's watermark."""

    like: int
    changes: Changes = frozenset()

    @staticmethod
    def of(plain: Plain, version: int, live: Live) -> "Catalogue":
        later = (each for each in live.changes if each[1] > plain.marks[version])
        return Catalogue(plain.like[version], frozenset(later))


class Answers:
    """The plain replies, by what is served and live. `ads` has the ads of versions 1 and 2."""

    def __init__(self, files: ServingFiles, folder: Path) -> None:
        self.live, other = LiveRoot.write(folder, files), folder / "other"
        write_random(model_spec(), other, seed=7, dtype=torch.float32)
        self.checkpoints = files.checkpoint, other
        self.ids = [checkpoint_id(each) for each in self.checkpoints]
        self._pairs = {
            (Catalogue(like), number): load_cpu_pair(self.live.folder(like), checkpoint)
            for like in (1, 2)
            for number, checkpoint in enumerate(self.checkpoints)
        }
        self.schema = self._pairs[Catalogue(1), 0].snapshot.schema
        self.rows = table_rows(files)
        raw = [raw_ad(row, self.schema) for row in self.rows.values()]
        self._ads = {Catalogue(like): {ad.ad_id: ad for ad in raw[::like]} for like in (1, 2)}
        self._replies: dict[tuple[Catalogue, int, Live, str], RetrieveResponse] = {}

    def ads(self, catalogue: Catalogue) -> dict[int, RawAd]:
        if catalogue not in self._ads:
            ads = dict(self._ads[Catalogue(catalogue.like)])
            for ad_id, _, row in catalogue.changes:
                ads.pop(ad_id, None)
                if row is not None:
                    ads[ad_id] = raw_ad(table_row(row), self.schema)
            self._ads[catalogue] = ads
        return self._ads[catalogue]

    def _pair(self, catalogue: Catalogue, checkpoint: int) -> ServingPair:
        if (catalogue, checkpoint) not in self._pairs:
            pair = self._pairs[Catalogue(catalogue.like), checkpoint]
            made = changed_pair(pair, self.ads(catalogue).values())
            self._pairs[catalogue, checkpoint] = made
        return self._pairs[catalogue, checkpoint]

    def reply(
        self, catalogue: Catalogue, checkpoint: int, live: Live, request: JsonRequest
    ) -> RetrieveResponse:
        key = catalogue, checkpoint, live, json.dumps(request)
        if key not in self._replies:
            pair = self._pair(catalogue, checkpoint)
            stop(pair, live.stops(self.ads(catalogue).values()), dict(live.weights))
            batch = request_batch(pair, [request], 1, str(request["profile"]))
            (self._replies[key],) = replies_of(answer(batch)).values()
        return self._replies[key]

    def unknown(
        self, catalogue: Catalogue, update: UpdateAdsRequest, before: Catalogue
    ) -> dict[str, UnknownIds]:
        """Return what a reply says about ids that the served ads, or those before, do not have."""
        ads = self.ads(catalogue)
        known = {("ad", ad_id) for ad_id in ads}
        known |= {pair for ad in ads.values() for pair in ad.entities.items()}
        found: dict[str, UnknownIds] = {}
        unknown = (named(update.stop) | named(update.resume)) - known
        unknown |= {("ad", each) for each in {*update.remove} - self.ads(before).keys()}
        for level, each in sorted(unknown):
            of_level = found.setdefault(level, UnknownIds())
            of_level.count += 1
            of_level.ids.extend([each] if of_level.count <= MOST_UNKNOWN else ())
        return found
