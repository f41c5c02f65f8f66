"""The last stage: generated leaves to ads, exactly matched, and to the bytes of each reply."""

from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.matching.exact import MatchCounts
from grace.index.trie import NO_NODE
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
from grace.server.stages.replies import Leaves, ReplyHeads, write_replies

_MAX_UINT32 = 2**32 - 1
_NONE_DENIED = np.empty(0, np.int64)
_TIMED = STAGE_NAMES[:-1]


def answer_requests(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """`spans` are those of the stages before, by which the reply tells its times."""
    begin = perf_counter()
    requests = batch.input.requests
    corrupt = batch.corrupt.numpy()[: len(requests)].tolist()
    sound = [row for row in range(len(requests)) if not corrupt[row]]
    leaves = _leaves_of(batch, sound)
    with batch.input.batch.pair.matcher.held(*_asked(batch.input, leaves)) as ads:
        heads = _heads(batch.input, sound, _Times(batch.input, spans, begin))
        replies = write_replies(ads, heads, leaves, batch.input.batch.pair.snapshot.trie)
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


def _leaves_of(batch: GeneratedBatch, sound: Sequence[int]) -> Leaves:
    leaves = np.ascontiguousarray(batch.leaves.numpy())
    scores = np.ascontiguousarray(batch.scores.numpy())
    if len(sound) < len(leaves):
        kept = leaves[sound]
        leaves = np.full_like(leaves, NO_NODE)
        leaves[sound] = kept
    return Leaves(leaves, scores)


def _asked(batch: InputBatch, leaves: Leaves) -> tuple[Any, ...]:
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


def _heads(batch: InputBatch, rows: Sequence[int], times: _Times) -> ReplyHeads:
    """What the replies of these rows say besides their ads."""
    retrievals = [batch.requests[row].retrieval for row in rows]
    return ReplyHeads(
        rows=np.array(rows, np.int32),
        request_ids=[retrieval.request_id for retrieval in retrievals],
        ignored=[batch.ignored[row] for row in rows],
        timings=times.of(rows),
        include_sids=[retrieval.include_sids for retrieval in retrievals],
        snapshot_version=batch.batch.pair.snapshot.facts.version,
        checkpoint=batch.batch.pair.checkpoint,
        profile=batch.batch.profile_name,
    )


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
