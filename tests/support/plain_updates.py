"""What updates of ads mean, on plain Python data, and snapshots with random entities for them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grace.configs.eligibility import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

ENTITIES = ("campaign", "advertiser")
SCHEMA = TargetingSchema((), (), hash_seed=7, entities=ENTITIES)


@dataclass
class PlainState:
    sequence: int = 0
    stopped: set[tuple[str, int]] = field(default_factory=set)
    weights: dict[int, float] = field(default_factory=dict)
    changes: dict[int, tuple[int, str | None]] = field(default_factory=dict)

    def apply(self, update: UpdateAdsRequest) -> bool:
        """Return whether it changed the state; assert that it may follow."""
        if update.sequence <= self.sequence:
            return False
        full = update.kind == UpdateAdsRequest.KIND_FULL
        assert full or update.sequence == self.sequence + 1
        if full and update.part <= 1:
            self.stopped, self.weights, self.changes = set(), {}, {}
        self.stopped |= named(update.stop)
        self.stopped -= named(update.resume)
        self.weights |= {each.ad_id: each.weight for each in update.weights}
        self.weights = {
            key: each for key, each in self.weights.items() if key not in update.unweight
        }
        rows = {int(json.loads(row)["ad_id"]): row for row in update.put}
        number = update.changed_at or update.sequence
        for ad_id, row in (rows | dict.fromkeys(update.remove)).items():
            self.changes[ad_id] = number, row
        if update.part == update.parts:
            self.sequence = update.sequence
        return True

    def changed_after(self, sequence: int) -> dict[int, str | None]:
        return {ad_id: row for ad_id, (at, row) in self.changes.items() if at > sequence}

    def stops(self, ad: RawAd) -> bool:
        return bool({("ad", ad.ad_id), *ad.entities.items()} & self.stopped)


def named(levels: Mapping[str, object]) -> set[tuple[str, int]]:
    return {(level, each) for level, message in levels.items() for each in message.ids}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class EntityCatalogue:
    ads: Sequence[RawAd]
    snapshot: Snapshot

    def stopped_by(self, state: PlainState) -> set[int]:
        return {ad.ad_id for ad in self.ads if state.stops(ad)}

    def weights_under(self, state: PlainState) -> dict[int, float]:
        return {ad.ad_id: state.weights.get(ad.ad_id, ad.weight) for ad in self.ads}


def entity_catalogue(rng: np.random.Generator, ads: int, version: int = 1) -> EntityCatalogue:
    """Ads with ids from 0 to 2 * ads, each in a campaign and an advertiser, or in neither."""
    ids = rng.choice(2 * ads, ads, replace=False).tolist()
    raw = [
        RawAd(
            ad_id,
            (int(rng.integers(5)), int(rng.integers(7))),
            ad_id % 3,
            entities={name: int(rng.integers(9)) for name in ENTITIES if rng.random() < 0.7},
        )
        for ad_id in ids
    ]
    return EntityCatalogue(raw, plain_snapshot(SCHEMA, (5, 7), raw, MatcherMode.CD, version))


def random_update(rng: np.random.Generator, sequence: int, ids: int) -> UpdateAdsRequest:
    """An update of few ads and entities, some of which no snapshot knows."""
    full = rng.random() < 0.1
    update = UpdateAdsRequest(sequence=sequence, kind="KIND_FULL" if full else "KIND_DELTA")
    for level in ("ad", *ENTITIES, "unknown"):
        some = rng.choice(ids + 3 if level == "ad" else 11, int(rng.integers(5)), replace=False)
        for each in some.tolist():
            levels = update.stop if full or rng.random() < 0.5 else update.resume
            levels[level].ids.append(each)
    for ad_id in rng.choice(ids, 5, replace=False).tolist():
        if full or rng.random() < 0.6:
            update.weights.add(ad_id=ad_id, weight=float(rng.choice([-1.5, 0.0, 2.25, 1e30])))
        else:
            update.unweight.append(ad_id)
    changed = rng.choice(2 * ids, 4, replace=False).tolist()
    update.put.extend(json.dumps({"ad_id": ad_id, "at": sequence}) for ad_id in changed[:2])
    update.remove.extend(changed[2:])
    return update


def assert_weights_equal(got: Mapping[int, float], expected: Mapping[int, float]) -> None:
    assert got.keys() == expected.keys()
    assert all(math.isclose(got[key], expected[key], rel_tol=1e-6) for key in got)
