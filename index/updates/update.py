"""One update of ads, as read from a grace.v1.UpdateAdsRequest: stops, resumes and weights.

A *level* says what an id stands for: "ad", or an entity such as "campaign".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from grace.configs.errors import RequestError
from grace.index.targeting.schema import is_name
from grace.index.updates.id_set import distinct
from grace.proto.retrieval_pb2 import AdWeight, UpdateAdsRequest
from grace.proto.retrieval_pb2 import Ids as IdsMessage

AD_LEVEL = "ad"
MOST_LEVELS = 64
MOST_IDS = 4_000_000
"""The most ids of one update: in stop, resume, weights and unweight together."""
MOST_BYTES = 64 << 20

Ids: TypeAlias = npt.NDArray[np.int64]
"""Distinct ids, ascending."""

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AdUpdate:
    """One update. If it is `full`, it replaces the whole state, and has no resume or unweight."""

    sequence: int
    full: bool
    stop: Mapping[str, Ids] = field(default_factory=dict)  # by level
    resume: Mapping[str, Ids] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)  # by ad id
    unweight: Ids = field(default_factory=lambda: _NONE)


def read_update(message: bytes) -> AdUpdate:
    """Read an UpdateAdsRequest. Raise DecodeError for other bytes, RequestError for a bad field."""
    request = UpdateAdsRequest.FromString(message)
    _require_bounds(request)
    return _read(request)


def read_kept(message: bytes) -> AdUpdate:
    """Return an update of the log. It may hold the whole state, which exceeds an update's bounds;
    otherwise as `read_update`."""
    return _read(UpdateAdsRequest.FromString(message))


def _read(request: UpdateAdsRequest) -> AdUpdate:
    _require_known_fields(request)
    if request.sequence == 0:
        raise RequestError("sequence", "must be at least 1, got 0; number updates 1, 2, 3, ...")
    if request.kind not in (UpdateAdsRequest.KIND_DELTA, UpdateAdsRequest.KIND_FULL):
        raise RequestError("kind", f"{request.kind} is not a kind; send KIND_DELTA or KIND_FULL")
    full = request.kind == UpdateAdsRequest.KIND_FULL
    if full and (request.resume or request.unweight):
        name = "resume" if request.resume else "unweight"
        raise RequestError(
            name, "a FULL update replaces the whole state and must not have it; leave it out"
        )
    update = AdUpdate(
        sequence=request.sequence,
        full=full,
        stop=_levels("stop", request.stop),
        resume=_levels("resume", request.resume),
        weights=_weights(request.weights),
        unweight=distinct(np.array(request.unweight, np.int64)),
    )
    _require_no_contradiction(update)
    return update


def full_message(sequence: int, stopped: Mapping[str, Ids], weights: Mapping[int, float]) -> bytes:
    """Return the FULL UpdateAdsRequest that makes this state."""
    return UpdateAdsRequest(
        sequence=sequence,
        kind=UpdateAdsRequest.KIND_FULL,
        stop={level: IdsMessage(ids=ids.tolist()) for level, ids in stopped.items() if len(ids)},
        weights=[AdWeight(ad_id=ad_id, weight=weight) for ad_id, weight in weights.items()],
    ).SerializeToString()


def _levels(name: str, given: Mapping[str, IdsMessage]) -> dict[str, Ids]:
    levels = {}
    for level, message in given.items():
        if not is_name(level):
            raise RequestError(
                f"{name}[{level[:80]!r}]",
                f"not a level; send {AD_LEVEL!r}, or the name of an entity of the targeting schema",
                f"{name}.*",
            )
        _require_known_fields(message)
        levels[level] = distinct(np.array(message.ids, np.int64))
    return levels


def _weights(given: Iterable[AdWeight]) -> dict[int, float]:
    weights: dict[int, float] = {}
    for place, each in enumerate(given):
        _require_known_fields(each)
        if not isfinite(each.weight):
            raise RequestError(
                f"weights[{place}].weight",
                f"must be finite, got {each.weight}; send another weight",
                "weights.weight",
            )
        if each.ad_id in weights:
            raise RequestError(
                f"weights[{place}].ad_id",
                f"ad {each.ad_id} has two weights; send only one",
                "weights.ad_id",
            )
        weights[each.ad_id] = each.weight
    return weights


def _require_bounds(request: UpdateAdsRequest) -> None:
    levels = {**request.stop, **request.resume}
    if len(levels) > MOST_LEVELS:
        fault = f"{len(levels)} levels in stop and resume, at most {MOST_LEVELS}; send fewer"
        raise RequestError("stop", fault)
    ids = sum(len(each.ids) for of in (request.stop, request.resume) for each in of.values())
    ids += len(request.weights) + len(request.unweight)
    if ids > MOST_IDS:
        fault = f"{ids} ids and weights, at most {MOST_IDS}: stop entities rather than their ads"
        raise RequestError("stop", fault)


def _require_no_contradiction(update: AdUpdate) -> None:
    for level in update.stop.keys() & update.resume.keys():
        both = np.intersect1d(update.stop[level], update.resume[level])
        if len(both):
            fault = f"{both[0]} is in stop, too; send it in one of them"
            raise RequestError(f"resume[{level!r}]", fault, "resume.*")
    for ad_id in update.unweight.tolist():
        if ad_id in update.weights:
            raise RequestError("unweight", f"{ad_id} is in weights, too; send it in one of them")


def _require_known_fields(message: Message) -> None:
    """Refuse unknown fields: the server would otherwise carry out only a part of the update."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        field = f"field {unknown[0].field_number}"
        raise RequestError(field, "unknown to this server; upgrade the server, or leave it out")
