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
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.forms.components import parts_of
from grace.index.matching.request_lists import (
    entity_limits,
    excluded_places,
    integers,
    require_one_each,
)
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserRows
from grace.native.loader import array_in, array_out, declare

_open = declare(
    "grace_exact_open",
    *(c_int32, c_int64, array_in(np.int64)),
    *(c_int64, array_in(np.int64), array_in(np.int32), array_in(np.float32)),
    *(c_int64, array_out(np.uint64)),
)
_add_entities = declare("grace_exact_add_entities", c_uint64, c_int64, array_in(np.int32))
_close = declare("grace_exact_close", c_uint64)
_match = declare(
    "grace_exact_match",
    *(c_uint64, c_int64, array_in(np.int64), array_in(np.int32), array_in(np.float32)),
    *(
        array_in(np.uintp),
        c_void_p,
        c_void_p,
        array_in(np.int64),
        array_in(np.int64),
        c_void_p,
        c_void_p,
        c_void_p,
    ),
    array_in(np.int64),
    *(array_out(np.int64), array_out(np.int64, 2), array_out(np.int64), array_out(np.uint64)),
)
_take = declare(
    "grace_replies_take",
    *(c_uint64, array_out(np.int64), array_out(np.float32), array_out(np.int32)),
)
_drop = declare("grace_replies_drop", c_uint64)

_NO_ADS = np.empty(0, np.int64)
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

    sids: npt.NDArray[np.int64]
    wasted: npt.NDArray[np.int64]
    generated: npt.NDArray[np.int64]
    stopped: npt.NDArray[np.int64]
    excluded: npt.NDArray[np.int64]
    matched: npt.NDArray[np.int64]
    limited: npt.NDArray[np.int64]
    failed: npt.NDArray[np.int64]
    returned: npt.NDArray[np.int64]

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        """True for the replies that `max_ads` cut short.   [B]"""
        return self.returned + self.limited < self.matched


@dataclass(frozen=True, slots=True)
class MatchedAds:
    """The returned ads of B requests, best first.

    offsets         int64 [B + 1]   request b's ads: offsets[b] .. [b + 1]
    ad_ids          int64 [...]
    scores          float32 [...]   that of the ad's leaf
    leaf_positions  int32 [...]     place of the ad's leaf among the request's leaves
    """

    offsets: npt.NDArray[np.int64]
    ad_ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    leaf_positions: npt.NDArray[np.int32]
    counts: MatchCounts

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class HeldAds:
    """The returned ads of B requests, in the memory of C++.

    leaves   int64 [B]       live ones that were given
    offsets  int64 [B + 1]   request b has offsets[b + 1] - offsets[b] ads
    replies  the handle that native functions read them by
    """

    leaves: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    counts: MatchCounts
    replies: int

    def taken(self) -> MatchedAds:
        """Return copies of them."""
        ads = int(self.offsets[-1])
        ad_ids, scores = np.empty(ads, np.int64), np.empty(ads, np.float32)
        positions = np.empty(ads, np.int32)
        _take(self.replies, ad_ids, scores, positions)
        return MatchedAds(self.offsets, ad_ids, scores, positions, self.counts)


class ExactMatcher:
    """Matches requests against one snapshot, which it keeps alive. Any thread may call it."""

    def __init__(self, snapshot: Snapshot, threads: int) -> None:
        if threads < 1:
            raise InputError(f"threads: must be at least 1, got {threads}")
        self._snapshot = snapshot
        self._handle = _open_matcher(snapshot, threads)
        weakref.finalize(self, _close, self._handle).atexit = False

    @contextmanager
    def held(
        self,
        users: UserRows,
        leaf_offsets: npt.NDArray[np.integer],
        leaves: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float32],
        max_ads: int | Sequence[int] | npt.NDArray[np.integer],
        stopped: npt.NDArray[np.uint64] | None = None,
        exclude_ads: Sequence[npt.ArrayLike] | None = None,
        exclude: Sequence[Mapping[str, npt.ArrayLike]] | None = None,
        at_most: Sequence[Mapping[str, int]] | None = None,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> Iterator[HeldAds]:
        """Match requests. The ads that it yields are valid only inside the context.

        leaf_offsets  [B + 1]       request b's leaves: leaf_offsets[b] .. [b + 1]
        leaves        int32 [n]     leaf numbers, each once per request; NO_NODE is skipped
        scores        float32 [n]   in any order; NaN only with NO_NODE
        max_ads       for all requests, or one per request
        stopped       uint64 [ceil(ads / 64)]   a bit per ordinal (SidToAds.bitmap)
        exclude_ads   per request the ad ids not to return; unknown ones are ignored
        exclude       per request the same of entity ids, by the schema's names of entities
        at_most       per request the most ads to return of each entity, by the same names
        weights       float32 [ads]   instead of the snapshot's

        Another thread may change elements of `stopped` and `weights` meanwhile: each one counts
        with its old or its new value.
        """
        requests, snapshot = len(users), self._snapshot
        first_leaves = np.ascontiguousarray(leaf_offsets, np.int64)
        leaves, scores = np.ascontiguousarray(leaves), np.ascontiguousarray(scores)
        _check_shapes(snapshot, users, first_leaves, leaves, scores)
        words = _stopped_words(stopped, snapshot.ads.num_ads)
        weights = _live_weights(weights, snapshot.ads.num_ads)
        places = excluded_places(exclude, requests, snapshot.entities)
        limits = entity_limits(at_most, requests, snapshot.schema.entities)
        offsets = np.empty(requests + 1, np.int64)
        asked, kept = _asked(users)
        counts = np.empty((requests, _FIXED_COUNTS + len(asked)), np.int64)
        fault = np.zeros(2, np.int64)
        replies = np.zeros(1, np.uint64)
        _match(
            *(self._handle, requests, first_leaves, leaves, scores),
            *(asked, _address(words), _address(weights), *_ad_lists(exclude_ads, requests)),
            *(*map(_address, places), _address(limits)),
            *(_limits(max_ads, requests), offsets, counts, fault, replies),
        )
        del kept
        _raise_fault(fault, first_leaves, leaves, snapshot.trie.num_leaves)
        handle = int(replies[0])
        try:
            returned = offsets[1:] - offsets[:-1]
            yield HeldAds(counts[:, 0], offsets, _counts(counts, returned), handle)
        finally:
            _drop(handle)

    def match(
        self,
        users: UserRows,
        leaf_offsets: npt.NDArray[np.integer],
        leaves: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float32],
        max_ads: int | Sequence[int] | npt.NDArray[np.integer],
        stopped: npt.NDArray[np.uint64] | None = None,
        exclude_ads: Sequence[npt.ArrayLike] | None = None,
        exclude: Sequence[Mapping[str, npt.ArrayLike]] | None = None,
        at_most: Sequence[Mapping[str, int]] | None = None,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> MatchedAds:
        """Match requests as `held` does, and return copies of their ads."""
        given = (users, leaf_offsets, leaves, scores, max_ads, stopped, exclude_ads)
        with self.held(*given, exclude, at_most, weights) as ads:
            return ads.taken()


def _open_matcher(snapshot: Snapshot, threads: int) -> int:
    ads = snapshot.ads
    handle = np.zeros(1, np.uint64)
    _open(
        *(threads, snapshot.trie.num_leaves, ads.ad_offsets),
        *(ads.num_ads, ads.ad_ids, ads.ad_rule, ads.ad_weight),
        *(snapshot.rules.num_rules, handle),
    )
    try:
        for component, ids, rows in parts_of(snapshot):
            component.add_to_matcher(int(handle[0]), ids, rows)
        for entities in snapshot.entities:
            _add_entities(int(handle[0]), len(entities), entities.of_ad)
    except BaseException:
        _close(int(handle[0]))
        raise
    return int(handle[0])


def _check_shapes(
    snapshot: Snapshot,
    users: UserRows,
    offsets: npt.NDArray[np.int64],
    leaves: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
) -> None:
    users.require_encoded_for(snapshot)
    if leaves.dtype != np.int32 or scores.dtype != np.float32 or leaves.shape != scores.shape:
        raise InputError(
            f"leaves and scores must be int32 and float32 of one shape [n], got {leaves.dtype} "
            f"{list(leaves.shape)} and {scores.dtype} {list(scores.shape)}"
        )
    if (
        offsets.shape != (len(users) + 1,)
        or offsets[0] != 0
        or offsets[-1] != len(leaves)
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise InputError(
            f"leaf_offsets must ascend from 0 to {len(leaves)}, the number of leaves, and be "
            f"[requests + 1] = [{len(users) + 1}], got {list(offsets.shape)}: "
            f"{', '.join(map(str, offsets[:8]))}{', ...' if len(offsets) > 8 else ''}"
        )


def _raise_fault(
    fault: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    leaves: npt.NDArray[np.int32],
    num_leaves: int,
) -> None:
    """Raise the fault that native code found in a leaf: its kind, and the position."""
    kind, position = fault.tolist()
    if kind == 0:
        return
    request = int(np.searchsorted(offsets, position, side="right")) - 1
    leaf = f"request {request}, leaf {leaves[position]} at {position - offsets[request]}"
    raise InputError(
        {
            1: f"{leaf}: out of range; the snapshot has leaves 0 to {num_leaves - 1}, "
            f"and {NO_NODE} stands for none",
            2: f"{leaf}: its score is not a number",
            3: f"{leaf}: named a second time; name each leaf once",
        }[kind]
    )


def _limits(
    max_ads: int | Sequence[int] | npt.NDArray[np.integer], requests: int
) -> npt.NDArray[np.int64]:
    limits = integers("max_ads", max_ads)
    if limits.shape not in ((), (requests,)):
        raise InputError(f"max_ads must be one number or [{requests}], got {list(limits.shape)}")
    if limits.size and limits.min() < 0:
        raise InputError(f"max_ads must not be negative, got {limits.min()}")
    return limits if limits.shape else np.full(requests, limits)


def _stopped_words(
    stopped: npt.NDArray[np.uint64] | None, num_ads: int
) -> npt.NDArray[np.uint64] | None:
    if stopped is None:
        return None
    words = -(-num_ads // 64)
    if stopped.dtype != np.uint64 or stopped.shape != (words,):
        raise InputError(
            f"stopped must be uint64 [ceil(ads / 64)] = [{words}], got {stopped.dtype} "
            f"{list(stopped.shape)}: make it with SidToAds.bitmap"
        )
    return np.ascontiguousarray(stopped)


def _live_weights(
    weights: npt.NDArray[np.float32] | None, num_ads: int
) -> npt.NDArray[np.float32] | None:
    if weights is None:
        return None
    if weights.dtype != np.float32 or weights.shape != (num_ads,):
        raise InputError(
            f"weights must be float32 [ads] = [{num_ads}], got {weights.dtype} "
            f"{list(weights.shape)}: copy the snapshot's ad_weight and change that"
        )
    return np.ascontiguousarray(weights)


def _ad_lists(
    exclude_ads: Sequence[npt.ArrayLike] | None, requests: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return offsets [B + 1] and ad ids."""
    require_one_each("exclude_ads", exclude_ads, requests)
    lists = [integers("exclude_ads", ids).reshape(-1) for ids in exclude_ads or ()]
    offsets = np.zeros(requests + 1, np.int64)
    if not any(map(len, lists)):
        return offsets, _NO_ADS
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return offsets, np.concatenate(lists)


def _address(array: npt.NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _asked(users: UserRows) -> tuple[npt.NDArray[np.uintp], list[object]]:
    """Return where C++ reads what users ask of each component, and what must live meanwhile."""
    kept: list[object] = []
    parts = zip(users.encoder.components, users.asked, strict=True)
    addresses = [component.address(asked, kept) for component, asked in parts]
    return np.array(addresses, np.uintp), kept


def _counts(counts: npt.NDArray[np.int64], returned: npt.NDArray[np.int64]) -> MatchCounts:
    fixed, failed = counts.T[:_FIXED_COUNTS], counts[:, _FIXED_COUNTS:]
    return MatchCounts(*(*fixed, failed, returned))
