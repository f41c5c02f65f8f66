"""What updates of ads mean, on plain Python data, and snapshots with random entities for them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import RequestError
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema, is_name
from grace.index.updates.update import MOST_IDS, MOST_LEVELS, MOST_PARTS, MOST_PUTS, AdUpdate
from grace.proto.retrieval_pb2 import Ids, UpdateAdsRequest
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strict_wire import UPDATE, MalformedError, UnknownFieldError, decode

ENTITIES = ("campaign", "advertiser")
SCHEMA = TargetingSchema((), (), hash_seed=7, entities=ENTITIES)


def plain_update(message: bytes) -> AdUpdate:
    """Read an UpdateAdsRequest with the strict reader and protobuf's own, and refuse what is wrong
    with it. Levels are checked in the order of their names."""
    try:
        decode(message, UPDATE)
    except MalformedError:
        raise RequestError("", "malformed") from None
    except UnknownFieldError as error:
        raise RequestError(error.within or "UpdateAdsRequest", error.text) from None
    request = UpdateAdsRequest.FromString(message)
    both = (request.stop, request.resume)
    ids = sum(len(each.ids) for levels in both for each in levels.values())
    ids += len(request.weights) + len(request.unweight)
    if ids > MOST_IDS:
        fault = f"{ids} ids and weights, at most {MOST_IDS}: stop entities rather than their ads"
        raise RequestError("stop", fault)
    if (levels := len({*request.stop, *request.resume})) > MOST_LEVELS:
        fault = f"{levels} levels in stop and resume, at most {MOST_LEVELS}; send fewer"
        raise RequestError("stop", fault)
    plain_puts(request)
    if request.sequence == 0:
        raise RequestError("sequence", "must be at least 1, got 0; number updates 1, 2, 3, ...")
    if request.kind not in (UpdateAdsRequest.KIND_DELTA, UpdateAdsRequest.KIND_FULL):
        raise RequestError("kind", f"{request.kind} is not a kind; send KIND_DELTA or KIND_FULL")
    full = request.kind == UpdateAdsRequest.KIND_FULL
    for name in ("resume", "unweight"):
        if full and getattr(request, name):
            fault = "a FULL update replaces the whole state and must not have it; leave it out"
            raise RequestError(name, fault)
    plain_parts(request, full)
    weights = plain_weights(request)
    stop, resume = plain_levels("stop", request.stop), plain_levels("resume", request.resume)
    for level in sorted(stop.keys() & resume.keys()):
        if twice := {*stop[level].tolist()} & {*resume[level].tolist()}:
            fault = f"{min(twice)} is in stop, too; send it in one of them"
            raise RequestError(f"resume[{level!r}]", fault)
    if twice := set(request.unweight) & weights.keys():
        raise RequestError("unweight", f"{min(twice)} is in weights, too; send it in one of them")
    of_ads = np.array([weights[ad] for ad in sorted(weights)], np.float32)
    weighted, unweight = sorted_ids(weights), sorted_ids(request.unweight)
    return AdUpdate(
        *(request.sequence, full, stop, resume, weighted, of_ads, unweight),
        put=tuple(map(str.encode, request.put)),
        remove=sorted_ids(request.remove),
        part=request.part,
        parts=request.parts,
        changed_at=request.changed_at or request.sequence,
        wait_visible=request.wait_visible,
    )


def plain_puts(request: UpdateAdsRequest) -> None:
    if (changed := len(request.put) + len(request.remove)) > MOST_PUTS:
        fault = f"{changed} puts and removals, at most {MOST_PUTS}; send several updates"
        raise RequestError("put", fault)


def plain_parts(request: UpdateAdsRequest, full: bool) -> None:
    part, parts, changed_at = request.part, request.parts, request.changed_at
    if parts and not full:
        raise RequestError("parts", "only a FULL update comes in parts; send several DELTAs")
    if parts > MOST_PARTS:
        raise RequestError("parts", f"{parts}, at most {MOST_PARTS}; send fewer and larger ones")
    if part > parts or (parts and not part):
        raise RequestError("part", f"{part} is not within 1 to `parts`, {parts}; number parts so")
    if not full and changed_at:
        fault = f"{changed_at}, and only a FULL may have it; leave it out"
        raise RequestError("changed_at", fault)
    if changed_at > request.sequence:
        fault = f"{changed_at}, at most {request.sequence}, its sequence; leave it out"
        raise RequestError("changed_at", fault)


def sorted_ids(ids: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array(sorted(set(ids)), np.int64)


def plain_levels(name: str, given: Mapping[str, Ids]) -> dict[str, npt.NDArray[np.int64]]:
    for level in sorted(given):
        if not is_name(level):
            fault = "not a level; send 'ad', or the name of an entity of the targeting schema"
            raise RequestError(f"{name}[{level[:80]!r}]", fault)
    return {level: sorted_ids(ids.ids) for level, ids in given.items()}


def plain_weights(request: UpdateAdsRequest) -> dict[int, float]:
    weights: dict[int, float] = {}
    for place, each in enumerate(request.weights):
        if not math.isfinite(each.weight):
            fault = f"must be finite, got {each.weight}; send another weight"
            raise RequestError(f"weights[{place}].weight", fault)
        if each.ad_id in weights:
            fault = f"ad {each.ad_id} has two weights; send only one"
            raise RequestError(f"weights[{place}].ad_id", fault)
        weights[each.ad_id] = each.weight
    return weights


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
