"""The last stage: generated leaves to ads, exactly matched, and to the bytes of each reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.matching.exact import HeldAds, MatchCounts, MatchedAds
from grace.index.trie import NO_NODE
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse, Timings
from grace.server.errors import InternalError
from grace.server.messages import (
    STAGE_NAMES,
    Answer,
    AnsweredBatch,
    Failure,
    GeneratedBatch,
    InputBatch,
    Span,
    queue_seconds,
)
from grace.server.stages.native_replies import ReplyHeads, write_replies
from grace.server.stages.replies import GeneratedSids, write_reply

__all__ = ["answer_requests"]

_MAX_UINT32 = 2**32 - 1
_NONE_DENIED = np.empty(0, np.int64)
_TIMED = STAGE_NAMES[:-1]


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Of every row of the bucket; those of padding and of corrupt requests are all dead.

    leaves  int32 [bucket, num_sids]
    scores  float32 [bucket, num_sids]
    """

    leaves: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def answer_requests(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """`spans` are those of the stages before, by which the reply tells its times."""
    begin = perf_counter()
    requests = batch.input.requests
    corrupt = batch.corrupt.numpy()[: len(requests)].tolist()
    sound = [row for row in range(len(requests)) if not corrupt[row]]
    leaves = _leaves_of(batch, sound)
    with batch.input.batch.pair.matcher.held(*_asked(batch.input, leaves)) as ads:
        replies = _replies(batch.input, sound, leaves, ads, _Times(batch.input, spans, begin))
        counts = _counts_of(ads.counts, sound)
    return AnsweredBatch(
        batch.input,
        tuple(Answer(requests[row], reply) for row, reply in zip(sound, replies, strict=True)),
        tuple(
            Failure(request, InternalError("not_finite"))
            for request, is_corrupt in zip(requests, corrupt, strict=True)
            if is_corrupt
        ),
        counts,
    )


def _leaves_of(batch: GeneratedBatch, sound: Sequence[int]) -> _Leaves:
    leaves, scores = batch.leaves.numpy(), batch.scores.numpy()
    if len(sound) < len(leaves):
        kept = leaves[sound]
        leaves = np.full_like(leaves, NO_NODE)
        leaves[sound] = kept
    return _Leaves(leaves, scores)


def _asked(batch: InputBatch, leaves: _Leaves) -> tuple[Any, ...]:
    """What the matcher is asked."""
    retrievals = [request.retrieval for request in batch.requests]
    rows, width = leaves.leaves.shape
    padding = rows - len(retrievals)
    return (
        batch.user_rows,
        _row_ends(rows, width),
        leaves.leaves.reshape(-1),
        leaves.scores.reshape(-1),
        [*(retrieval.max_ads for retrieval in retrievals), *[0] * padding],
        None,
        [*(retrieval.exclude_ads for retrieval in retrievals), *[_NONE_DENIED] * padding],
    )


@lru_cache(maxsize=64)
def _row_ends(rows: int, width: int) -> npt.NDArray[np.int64]:
    return np.arange(rows + 1, dtype=np.int64) * width


class _Times:
    """All that was not spent in a stage is queue."""

    def __init__(self, batch: InputBatch, spans: tuple[Span, ...], begin: float) -> None:
        spent = dict.fromkeys(_TIMED, 0.0)
        spent.update((span.stage, span.end - span.begin) for span in spans)
        self._begin = begin
        self._stages = [_microseconds(spent[stage]) for stage in _TIMED]
        waited = queue_seconds(batch.requests, (*spans, Span("post", begin, begin)))
        self._queue = [_microseconds(seconds) for seconds in waited]

    def of(self, rows: Sequence[int]) -> npt.NDArray[np.uint32]:
        """Until now, as the fields of grace.v1.Timings.   [rows, 5]"""
        post = _microseconds(perf_counter() - self._begin)
        return np.array([[self._queue[row], *self._stages, post] for row in rows], np.uint32)


def _replies(
    batch: InputBatch, rows: Sequence[int], leaves: _Leaves, ads: HeldAds, times: _Times
) -> list[bytes]:
    """Of those rows."""
    made: dict[int, bytes] = {}
    with_sids = [row for row in rows if batch.requests[row].retrieval.include_sids]
    if with_sids:
        matched = ads.taken()
        for row in with_sids:
            made[row] = _reply_with_sids(batch, row, leaves, matched, times)
    others = [row for row in rows if row not in made]
    heads = ReplyHeads(
        rows=np.array(others, np.int32),
        request_ids=[batch.requests[row].retrieval.request_id for row in others],
        ignored=[batch.ignored[row] for row in others],
        timings=times.of(others),
        snapshot_version=batch.batch.pair.snapshot.facts.version,
        checkpoint=batch.batch.pair.checkpoint,
        profile=batch.batch.profile_name,
    )
    made.update(zip(others, write_replies(ads, heads), strict=True))
    return [made[row] for row in rows]


def _reply_with_sids(
    batch: InputBatch, row: int, leaves: _Leaves, matched: MatchedAds, times: _Times
) -> bytes:
    pair, counts = batch.batch.pair, matched.counts
    first, last = matched.offsets[row : row + 2].tolist()
    live = leaves.leaves[row] != NO_NODE
    # Dead leaves are left out, and what stood behind them moves up.
    place = np.cumsum(live, dtype=np.int32) - 1
    sids = GeneratedSids(
        pair.snapshot.trie.sids(leaves.leaves[row][live]),
        leaves.scores[row][live],
        place[matched.leaf_positions[first:last]],
    )
    queue, *stages = times.of([row])[0].tolist()
    head = RetrieveResponse(
        request_id=batch.requests[row].retrieval.request_id,
        counts=Counts(
            sids_generated=int(np.count_nonzero(live)),
            ads_generated=int(counts.generated[row]),
            ads_matched=int(counts.matched[row]),
            ads_returned=last - first,
        ),
        snapshot_version=pair.snapshot.facts.version,
        checkpoint=pair.checkpoint,
        ignored_names=batch.ignored[row],
        truncated=bool(counts.truncated[row]),
        profile=batch.batch.profile_name,
        timings=Timings(
            queue_us=queue,
            input_us=stages[0],
            features_us=stages[1],
            generate_us=stages[2],
            post_us=stages[3],
        ),
    )
    return write_reply(head, matched.ad_ids[first:last], matched.scores[first:last], sids)


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1e6)), _MAX_UINT32)


def _counts_of(counts: MatchCounts, rows: Sequence[int]) -> MatchCounts:
    return MatchCounts(
        generated=counts.generated[rows],
        attributes=counts.attributes[rows],
        sets=counts.sets[rows],
        paused=counts.paused[rows],
        denied=counts.denied[rows],
        matched=counts.matched[rows],
        returned=counts.returned[rows],
    )
