"""The last stage: generated leaves to ads, exactly matched, and to the bytes of each reply."""

from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import fields
from time import perf_counter
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from grace.index.matching.exact import HeldAds, MatchCounts
from grace.index.trie import NO_NODE
from grace.server.errors import internal
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
_NO_ADS = np.empty(0, np.int64)
_Value = TypeVar("_Value")
_Given = TypeVar("_Given", bound=Sized)


def answer_requests(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """Answer a batch; its replies report the times of the earlier stages from `spans`."""
    begin = perf_counter()
    requests = batch.input.requests
    corrupt = batch.corrupt.numpy()[: len(requests)].tolist()
    sound = [row for row in range(len(requests)) if not corrupt[row]]
    leaves = _leaves_of(batch, sound)
    with held_ads(batch.input, leaves) as ads:
        heads = _heads(batch.input, sound, _timings(batch.input, sound, spans, begin))
        replies = write_replies(ads, heads, leaves, batch.input.batch.pair.snapshot.trie)
        counts = ads.counts if len(sound) == len(ads.leaves) else _counts_of(ads.counts, sound)
    return AnsweredBatch(
        batch.input,
        tuple(Answer(requests[row], reply) for row, reply in zip(sound, replies, strict=True)),
        tuple(
            Failure(request, internal("not_finite"))
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


def held_ads(batch: InputBatch, leaves: Leaves) -> AbstractContextManager[HeldAds]:
    """Match the ads of all rows; padding rows have no leaf."""
    retrievals = [request.retrieval for request in batch.requests]
    rows, width = leaves.leaves.shape
    padding = rows - len(retrievals)
    entities = batch.batch.pair.snapshot.schema.entities
    # Once for the whole batch: an update is acknowledged when the batches of the older view are
    # answered.
    live = batch.batch.pair.live.view
    return batch.batch.pair.matcher.held(
        batch.user_rows,
        np.arange(rows + 1, dtype=np.int64) * width,
        leaves.leaves.reshape(-1),
        leaves.scores.reshape(-1),
        [*(retrieval.max_ads for retrieval in retrievals), *[0] * padding],
        stopped=live.stopped,
        exclude_ads=_padded([each.exclude_ads for each in retrievals], _NO_ADS, rows),
        exclude=_padded([_known(each.exclude, entities) for each in retrievals], {}, rows),
        at_most=_padded([_known(each.at_most, entities) for each in retrievals], {}, rows),
        weights=live.weights,
    )


def _padded(values: list[_Given], nothing: _Given, rows: int) -> list[_Given] | None:
    """Return a value for each row; None if they are all empty."""
    if not any(map(len, values)):
        return None
    return [*values, *[nothing] * (rows - len(values))]


def _known(values: Mapping[str, _Value], entities: Sequence[str]) -> Mapping[str, _Value]:
    """Return the values of the schema's entities; the input stage lists the other names."""
    if not values:
        return values
    return {name: value for name, value in values.items() if name in entities}


def _timings(
    batch: InputBatch, rows: Sequence[int], spans: tuple[Span, ...], begin: float
) -> npt.NDArray[np.uint32]:
    """Return the fields of grace.v1.Timings; `queue` is all time outside stages.   [rows, 5]"""
    waited = queue_seconds(batch.requests, (*spans, Span("post", begin, begin)))
    spent = {span.stage: span.end - span.begin for span in spans}
    stages = [_microseconds(spent.get(stage, 0.0)) for stage in STAGE_NAMES[:-1]]
    post = _microseconds(perf_counter() - begin)
    return np.array([(_microseconds(waited[row]), *stages, post) for row in rows], np.uint32)


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1e6)), _MAX_UINT32)


def _heads(batch: InputBatch, rows: Sequence[int], timings: npt.NDArray[np.uint32]) -> ReplyHeads:
    """What the replies of these rows say besides their ads."""
    retrievals = [batch.requests[row].retrieval for row in rows]
    return ReplyHeads(
        rows=np.array(rows, np.int32),
        request_ids=[retrieval.request_id for retrieval in retrievals],
        ignored=[batch.ignored[row] for row in rows],
        timings=timings,
        include_sids=[retrieval.include_sids for retrieval in retrievals],
        degraded=[batch.requests[row].degraded for row in rows],
        snapshot_version=batch.batch.pair.snapshot.facts.version,
        checkpoint=batch.batch.pair.checkpoint,
        profile=batch.batch.profile_name,
    )


def _counts_of(counts: MatchCounts, rows: Sequence[int]) -> MatchCounts:
    return MatchCounts(*(getattr(counts, count.name)[rows] for count in fields(counts)))
