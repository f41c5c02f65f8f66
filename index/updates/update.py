"""One update of ads, as read from a grace.v1.UpdateAdsRequest: stops, weights, puts and removals.

A *level* says what an id stands for: "ad", or an entity such as "campaign". An update may have
millions of ids, so C++ and NumPy read and write it, without the interpreter's lock.
"""

from collections.abc import Mapping, Sequence
from ctypes import c_char_p
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from grace.configs.arrays import Float32, Int64
from grace.configs.errors import RequestError
from grace.index.targeting.schema import AD_LEVEL, is_name
from grace.index.updates.id_map import distinct
from grace.native.loader import declare
from grace.native.wire import LONG_MESSAGES
from grace.proto.retrieval_pb2 import UpdateAdsRequest

MOST_LEVELS = 64
MOST_IDS = 4_000_000
"""The most ids of one update: in stop, resume, weights and unweight together."""
MOST_BYTES = 64 << 20
MOST_PUTS = 100_000
"""The most puts and removals of one message."""
MOST_PARTS = 4096

Ids: TypeAlias = Int64
"""Distinct ids, ascending."""
Change: TypeAlias = tuple[int, bytes | None]
"""An ad's id and the row that is put; None removes the ad."""

_NONE = np.empty(0, np.int64)
# The last one is for the whole update, and again for each level.
_MOST_ID_BYTES, _MOST_WEIGHT_BYTES, _MOST_OTHER_BYTES = 10, 18, 64

_take_weights = declare("grace_update_weights(text, int64, int64, out int64[], out float32[])")
_write = declare(
    "grace_update_write("
    "uint64, int64, texts, int64[], int64[], int64, int64[], float32[], int64, out uint8[], "
    "out int64[])"
)
_write_ids = declare("grace_ids_write(int64, int64[], int64, out uint8[], out int64[])")


@dataclass(frozen=True, slots=True, eq=False)
class AdUpdate:
    """One update, or a part of one. If it is `full`, it replaces the whole state, and has no resume
    or unweight.
    """

    sequence: int
    full: bool
    stop: Mapping[str, Ids] = field(default_factory=dict)  # by level
    resume: Mapping[str, Ids] = field(default_factory=dict)
    weighted: Ids = field(default_factory=lambda: _NONE)  # the ads that get a weight
    weights: Float32 = field(default_factory=lambda: np.empty(0, np.float32))  # [weighted]
    unweight: Ids = field(default_factory=lambda: _NONE)
    put: tuple[bytes, ...] = ()  # rows of the ads table in JSON, one for each ad that is put
    put_ids: tuple[int, ...] = ()  # their ids, once the rows have been read
    remove: Ids = field(default_factory=lambda: _NONE)
    part: int = 0  # of how many `parts` of the update this is, from 1; both are 0 if it is whole
    parts: int = 0
    changed_at: int = 0  # the number of the update that the puts and removals come from
    wait_visible: bool = False

    @property
    def changes_ads(self) -> bool:
        return self.full or len(self.put) + len(self.remove) > 0


def read_update(message: bytes, *, bounded: bool = True) -> AdUpdate:
    """Read an UpdateAdsRequest. Raise RequestError with the bad field, or none for faulty bytes.

    bounded  False for an update of the log, which may hold the whole state
    """
    head, wrong = LONG_MESSAGES.read("UpdateAdsRequest", message)
    if wrong is not None:  # the server would otherwise carry out only a part of the update
        raise wrong
    if bounded:
        levels = max(head.number("stop"), head.number("resume"))
        if levels > MOST_LEVELS:  # before their names become texts
            raise _too_many_levels(levels)
        ids = head.integers_in("stop") + head.integers_in("resume")
        ids += head.number("weights") + head.number("unweight")
        if ids > MOST_IDS:
            fault = f"{ids} ids and weights, at most {MOST_IDS}"
            raise RequestError("stop", f"{fault}: stop entities rather than their ads")
        if (changed := head.number("put") + head.number("remove")) > MOST_PUTS:
            fault = f"{changed} puts and removals, at most {MOST_PUTS}; send several updates"
            raise RequestError("put", fault)
    stop, resume = head.lists("stop"), head.lists("resume")
    if bounded and len(stop.keys() | resume.keys()) > MOST_LEVELS:
        raise _too_many_levels(len(stop.keys() | resume.keys()))
    sequence, kind = head.number("sequence"), head.number("kind")
    if sequence == 0:
        raise RequestError("sequence", "must be at least 1, got 0; number updates 1, 2, 3, ...")
    if kind not in (UpdateAdsRequest.KIND_DELTA, UpdateAdsRequest.KIND_FULL):
        raise RequestError("kind", f"{kind} is not a kind; send KIND_DELTA or KIND_FULL")
    full = kind == UpdateAdsRequest.KIND_FULL
    for name in ("resume", "unweight"):
        if full and head.number(name):
            words = "a FULL update replaces the whole state and must not have it; leave it out"
            raise RequestError(name, words)
    sequence %= 2**64
    part, parts = _part(head.number("part"), head.number("parts"), full, bounded)
    changed_at = head.number("changed_at") % 2**64
    if changed_at > (sequence if full else 0):
        allowed = f"at most {sequence}, its sequence" if full else "and only a FULL may have it"
        raise RequestError("changed_at", f"{changed_at}, {allowed}; leave it out")
    weighted, weights = _weights(message, head.number("weights"))
    update = AdUpdate(
        sequence=sequence,
        full=full,
        stop=_levels("stop", stop),
        resume=_levels("resume", resume),
        weighted=weighted,
        weights=weights,
        unweight=distinct(head.integers("unweight")),
        put=head.texts("put"),
        remove=distinct(head.integers("remove")),
        part=part,
        parts=parts,
        changed_at=changed_at or sequence,
        wait_visible=bool(head.number("wait_visible")),
    )
    _require_no_contradiction(update)
    return update


def _part(part: int, parts: int, full: bool, bounded: bool) -> tuple[int, int]:
    if parts and not full:
        raise RequestError("parts", "only a FULL update comes in parts; send several DELTAs")
    if bounded and parts > MOST_PARTS:
        raise RequestError("parts", f"{parts}, at most {MOST_PARTS}; send fewer and larger ones")
    if part > parts or (parts and not part):
        raise RequestError("part", f"{part} is not within 1 to `parts`, {parts}; number parts so")
    return part, parts


def _too_many_levels(levels: int) -> RequestError:
    fault = f"{levels} levels in stop and resume, at most {MOST_LEVELS}; send fewer"
    return RequestError("stop", fault)


def full_message(
    sequence: int, stopped: Mapping[str, Ids], weighted: Ids, weights: Float32, parts: int = 0
) -> memoryview:
    """Return the FULL UpdateAdsRequest that makes this state, or the first of its parts."""
    names = [level.encode() for level in stopped]
    counts = np.array([len(ids) for ids in stopped.values()], np.int64)
    ids = np.concatenate([_NONE, *stopped.values()])
    room = _MOST_OTHER_BYTES + sum(_MOST_OTHER_BYTES + len(name) for name in names)
    room += _MOST_ID_BYTES * len(ids) + _MOST_WEIGHT_BYTES * len(weighted)
    message, size = np.empty(room, np.uint8), np.empty(1, np.int64)
    _write(
        *(sequence, len(names), (c_char_p * len(names))(*names), counts, ids),
        *(len(weighted), weighted, weights, room, message, size),
    )
    rest = UpdateAdsRequest(part=1, parts=parts).SerializeToString() if parts else b""
    end = int(size[0])
    message[end : end + len(rest)] = np.frombuffer(rest, np.uint8)  # _MOST_OTHER_BYTES has room
    return message.data[: end + len(rest)]


def changes_message(
    sequence: int, part: int, parts: int, changed_at: int, changes: Sequence[Change]
) -> bytes:
    """Return a part of a FULL update, with puts and removals."""
    return UpdateAdsRequest(
        sequence=sequence,
        kind=UpdateAdsRequest.KIND_FULL,
        put=[row.decode() for _, row in changes if row is not None],
        remove=[ad_id for ad_id, row in changes if row is None],
        part=part,
        parts=parts,
        changed_at=changed_at,
    ).SerializeToString()


def ids_message(ids: Ids) -> bytes:
    """Return a grace.v1.Ids. The ids of a GetStopsResponse have the same bytes."""
    room = _MOST_OTHER_BYTES + _MOST_ID_BYTES * len(ids)
    message, size = np.empty(room, np.uint8), np.empty(1, np.int64)
    _write_ids(len(ids), ids, room, message, size)
    return message[: int(size[0])].tobytes()


def _levels(name: str, given: Mapping[str, Int64]) -> dict[str, Ids]:
    levels = {}
    for level, ids in given.items():
        if not is_name(level):
            raise RequestError(
                f"{name}[{level[:80]!r}]",
                f"not a level; send {AD_LEVEL!r}, or the name of an entity of the targeting schema",
                f"{name}.*",
            )
        levels[level] = distinct(ids)
    return levels


def _weights(message: bytes, count: int) -> tuple[Ids, Float32]:
    """Return the ads ascending, and their weights. Raise RequestError for the first faulty one."""
    ad_ids, weights = np.empty(count, np.int64), np.empty(count, np.float32)
    if count:
        _take_weights(message, len(message), count, ad_ids, weights)
    order = np.argsort(ad_ids, kind="stable")
    ascending = ad_ids[order]
    repeated = order[1:][ascending[1:] == ascending[:-1]]
    faulty = np.concatenate((np.flatnonzero(~np.isfinite(weights)), repeated))
    if len(faulty):
        place = int(faulty.min())
        if not np.isfinite(weights[place]):
            fault = f"must be finite, got {weights[place]}; send another weight"
            raise RequestError(f"weights[{place}].weight", fault, "weights.weight")
        fault = f"ad {ad_ids[place]} has two weights; send only one"
        raise RequestError(f"weights[{place}].ad_id", fault, "weights.ad_id")
    return ascending, weights[order]


def _require_no_contradiction(update: AdUpdate) -> None:
    for level in sorted(update.stop.keys() & update.resume.keys()):
        both = np.intersect1d(update.stop[level], update.resume[level], assume_unique=True)
        if len(both):
            fault = f"{both[0]} is in stop, too; send it in one of them"
            raise RequestError(f"resume[{level!r}]", fault, "resume.*")
    both = np.intersect1d(update.unweight, update.weighted, assume_unique=True)
    if len(both):
        raise RequestError("unweight", f"{both[0]} is in weights, too; send it in one of them")
