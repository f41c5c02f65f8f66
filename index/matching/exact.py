"""Expand and exactly match: from the leaves that beam search found to the ads a user may see.

Every ad of the leaves is *generated*. It is *matched* if its rule holds exactly for the user, on
bits and interned values, never on Bloom bits, and neither an update stops it nor the request
excludes it. The best `max_ads` are *returned*: score descending, then weight descending, then ad
id. An ad is left out if an entity of it has its limit (`at_most`) of better ads in the reply. C++
does the work without the interpreter lock, request by request on several threads.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import Float32, Int32, Int64, Integers, UInt64
from grace.index.forms.components import parts_of
from grace.index.matching.ads import Entities
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserRows
from grace.native.loader import address_of, declare

_open = declare(
    "grace_exact_open("
    "int32, int64, int64[], int64, int64[], int32[], float32[], int64, int32[,], int64, int64[], "
    "int32[], out uint64[])"
)
_add_entities = declare("grace_exact_add_entities(uint64, int64, int32[])")
_close = declare("grace_exact_close(uint64)")
_match = declare(
    "grace_exact_match("
    "uint64, int64, int64[], int32[], float32[], uintp[], pointer, pointer, int64[], int64[], "
    "pointer, pointer, pointer, int64[], out int64[], out int64[,], out uint64[])"
)
_take = declare("grace_replies_take(uint64, out int64[], out float32[], out int32[])")
_drop = declare("grace_replies_drop(uint64)")

_NO_IDS = np.empty(0, np.int64)
_NO_LIMIT = -1
_FIXED_COUNTS = 7
"""leaves, wasted, generated, stopped, excluded, matched, limited; then failed, by component"""


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """The ads of each request, each counted once, by the first test that it failed.

    All int64 [B], and `failed` int64 [B, components].
    generated = sum of failed + stopped + excluded + matched
    matched >= returned + limited, which are the ads that `at_most` left out until the list was full
    sids are the live leaves, and wasted those of them with no ad that passes targeting.
    """

    sids: Int64
    wasted: Int64
    generated: Int64
    stopped: Int64
    excluded: Int64
    matched: Int64
    limited: Int64
    failed: Int64
    returned: Int64


@dataclass(frozen=True, slots=True)
class MatchedAds:
    """The returned ads of B requests, best first."""

    offsets: Int64  # [B + 1], request b's ads: offsets[b] .. [b + 1]
    ad_ids: Int64  # [...]
    scores: Float32  # [...] that of the ad's leaf
    # [...]: place of the ad's leaf among the request's leaves
    leaf_positions: Int32
    counts: MatchCounts

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class HeldAds:
    """The returned ads of B requests, in the memory of C++."""

    offsets: Int64  # [B + 1]: request b has offsets[b + 1] - offsets[b] ads
    counts: MatchCounts
    replies: int  # the handle that native functions read them by

    def taken(self) -> MatchedAds:
        ads = int(self.offsets[-1])
        ad_ids, scores = np.empty(ads, np.int64), np.empty(ads, np.float32)
        positions = np.empty(ads, np.int32)
        _take(self.replies, ad_ids, scores, positions)
        return MatchedAds(self.offsets, ad_ids, scores, positions, self.counts)


class MatchLimits(TypedDict, total=False):
    """What requests leave out, and the state of updates; None is nothing.

    Another thread may change elements of `stopped` and `weights` meanwhile: each one counts with
    its old or its new value.
    """

    # [ceil(ads / 64)]: a bit per ordinal (SidToAds.bitmap_of)
    stopped: UInt64 | None
    # per request the ad ids not to return; unknown ones are ignored
    exclude_ads: Sequence[npt.ArrayLike] | None
    # per request the same of entity ids, by the schema's names of entities
    exclude: Sequence[Mapping[str, npt.ArrayLike]] | None
    # per request the most ads to return of each entity, by the same names
    at_most: Sequence[Mapping[str, int]] | None
    weights: Float32 | None  # [ads]: instead of the snapshot's


class ExactMatcher:
    """Matches requests against one snapshot, which it keeps alive. Any thread may call it."""

    def __init__(self, snapshot: Snapshot, threads: int) -> None:
        self._snapshot = snapshot
        ads, rules, handle = snapshot.ads, snapshot.rules, np.zeros(1, np.uint64)
        _open(
            *(threads, snapshot.trie.num_leaves, ads.ad_offsets),
            *(ads.num_ads, ads.ad_ids, ads.ad_rule, ads.ad_weight),
            *(rules.num_rules, rules.rows, rules.num_alternatives, *rules.alternatives, handle),
        )
        self._handle = int(handle[0])
        weakref.finalize(self, _close, self._handle).atexit = False
        for part in parts_of(snapshot):
            part.component.add_to_matcher(self._handle, part.rows)
        for entities in snapshot.entities:
            _add_entities(self._handle, len(entities), entities.of_ad)

    @contextmanager
    def held(
        self,
        users: UserRows,
        # [B + 1], request b's leaves: leaf_offsets[b] .. [b + 1]
        leaf_offsets: Integers,
        # [n]: leaf numbers, each once per request; NO_NODE is skipped
        leaves: Int32,
        scores: Float32,  # [n] in any order; NaN only with NO_NODE
        # for all requests, or one per request
        max_ads: int | Sequence[int] | Integers,
        **limits: Unpack[MatchLimits],
    ) -> Iterator[HeldAds]:
        """Match requests. The ads that it yields are valid only inside the context."""
        requests, snapshot = len(users), self._snapshot
        users.require_encoded_for(snapshot)
        first_leaves = np.ascontiguousarray(leaf_offsets, np.int64)
        leaves, scores = np.ascontiguousarray(leaves), np.ascontiguousarray(scores)
        if first_leaves.shape != (requests + 1,) or leaves.shape != scores.shape:
            raise ValueError(
                f"leaf_offsets must be [{requests + 1}], and leaves and scores of one shape [n], "
                f"got {list(first_leaves.shape)}, {list(leaves.shape)} and {list(scores.shape)}"
            )
        ends = int(first_leaves[0]), int(first_leaves[-1])
        if ends != (0, len(leaves)):
            raise ValueError(f"leaf_offsets must be 0 to {len(leaves)}, got {ends[0]} to {ends[1]}")
        of_requests = np.broadcast_to(np.asarray(max_ads, np.int64), requests)
        words, num_ads = -(-snapshot.ads.num_ads // 64), snapshot.ads.num_ads
        exclude_ads = limits.get("exclude_ads")
        exclude_ads = [_NO_IDS] * requests if exclude_ads is None else exclude_ads
        places = _excluded_places(limits.get("exclude"), snapshot.entities)
        at_most = _entity_limits(limits.get("at_most"), snapshot.schema.entities)
        offsets = np.empty(requests + 1, np.int64)
        kept: list[object] = []
        asked = users.encoder.addresses(users.asked, kept)
        counts = np.empty((requests, _FIXED_COUNTS + len(asked)), np.int64)
        replies = np.zeros(1, np.uint64)
        kinds = len(snapshot.entities)
        _match(
            *(self._handle, requests, first_leaves, leaves, scores, asked),
            address_of("stopped", limits.get("stopped"), np.uint64, (words,)),
            address_of("weights", limits.get("weights"), np.float32, (num_ads,)),
            *_joined(exclude_ads, requests),
            address_of("exclude", places[0], np.int64, (requests * kinds + 1,)),
            None if places[1] is None else places[1].ctypes.data,
            address_of("at_most", at_most, np.int64, (requests, kinds)),
            *(np.ascontiguousarray(of_requests), offsets, counts, replies),
        )
        del kept
        handle = int(replies[0])
        try:
            fixed, failed = counts.T[:_FIXED_COUNTS], counts[:, _FIXED_COUNTS:]
            returned = offsets[1:] - offsets[:-1]
            yield HeldAds(offsets, MatchCounts(*(*fixed, failed, returned)), handle)
        finally:
            _drop(handle)

    def match(
        self,
        users: UserRows,
        leaf_offsets: Integers,
        leaves: Int32,
        scores: Float32,
        max_ads: int | Sequence[int] | Integers,
        **limits: Unpack[MatchLimits],
    ) -> MatchedAds:
        """Match requests as `held` does, and return copies of their ads."""
        with self.held(users, leaf_offsets, leaves, scores, max_ads, **limits) as ads:
            return ads.taken()


def _joined(lists: Sequence[npt.ArrayLike], count: int) -> tuple[Int64, Int64]:
    """Return offsets [count + 1] of the lists, and their ids one after another."""
    if len(lists) != count:
        raise ValueError(f"expected {count} lists of ids, got {len(lists)}")
    arrays = [np.array(ids, ndmin=1) for ids in lists]
    arrays = [ids.astype(np.int64, casting="safe") if len(ids) else _NO_IDS for ids in arrays]
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    return offsets, np.concatenate([_NO_IDS, *arrays])


def _excluded_places(
    exclude: Sequence[Mapping[str, npt.ArrayLike]] | None, entities: Sequence[Entities]
) -> tuple[Int64 | None, Int32 | None]:
    """Return offsets [B * kinds + 1], request by request, and places of known entities."""
    if exclude is None or not any(exclude):
        return None, None
    names = {kind.name for kind in entities}
    if unknown := {name for each in exclude for name in each if name not in names}:
        raise ValueError(f"exclude: {min(unknown)!r} is no entity of the snapshot")
    found = [kind.places(each.get(kind.name, _NO_IDS)) for each in exclude for kind in entities]
    offsets, places = _joined([each[each >= 0] for each in found], len(found))
    return offsets, places.astype(np.int32)


def _entity_limits(
    at_most: Sequence[Mapping[str, int]] | None, names: Sequence[str]
) -> Int64 | None:
    """Return the limit of each request and kind, or _NO_LIMIT.   [B, kinds]"""
    if at_most is None or not any(at_most):
        return None
    limits = np.full((len(at_most), len(names)), _NO_LIMIT, np.int64)
    for row, of_request in zip(limits, at_most, strict=True):
        for name, most in of_request.items():
            if name not in names or most < 0:
                raise ValueError(f"at_most[{name!r}] is {most}: give an entity and 0 or more")
            row[names.index(name)] = most
    return limits
