"""The last stage: generated leaves to ads, exactly matched, and to the bytes of each reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from index.exact import MatchCounts, MatchedAds
from index.trie import NO_NODE
from proto.retrieval_pb2 import Counts, RetrieveResponse, Timings
from server.errors import InternalError
from server.messages import (
    Answer,
    AnsweredBatch,
    Failure,
    GeneratedBatch,
    InputBatch,
    PendingRequest,
    Span,
    StageName,
)
from server.replies import GeneratedSids, write_reply

__all__ = ["answer_requests"]

_MAX_UINT32 = 2**32 - 1
_NONE_DENIED = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _LiveLeaves:
    """Of every row of the bucket; those of padding and of corrupt requests have none.

    offsets  int64 [bucket + 1]
    leaves   int32 [n]
    scores   float32 [n]
    """

    offsets: npt.NDArray[np.int64]
    leaves: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def answer_requests(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """`spans` are those of the stages before, by which the reply tells its times."""
    begin = perf_counter()
    corrupt = batch.corrupt.numpy()
    live = _live_leaves(batch)
    matched = _match(batch.input, live)
    answers: list[Answer] = []
    failures: list[Failure] = []
    rows: list[int] = []
    for row, request in enumerate(batch.input.requests):
        if corrupt[row]:
            failures.append(Failure(request, InternalError("not_finite")))
            continue
        rows.append(row)
        answers.append(Answer(request, _reply(batch.input, row, live, matched, spans, begin)))
    return AnsweredBatch(batch.input, tuple(answers), tuple(failures), _counts_of(matched, rows))


def _live_leaves(batch: GeneratedBatch) -> _LiveLeaves:
    leaves, scores = batch.leaves.numpy(), batch.scores.numpy()
    live = leaves != NO_NODE
    live[len(batch.input.requests) :] = False
    live[batch.corrupt.numpy()] = False
    offsets = np.zeros(len(live) + 1, np.int64)
    np.cumsum(live.sum(axis=1), out=offsets[1:])
    return _LiveLeaves(offsets, leaves[live], scores[live])


def _match(batch: InputBatch, live: _LiveLeaves) -> MatchedAds:
    retrievals = [request.retrieval for request in batch.requests]
    padding = batch.batch.bucket - len(retrievals)
    return batch.batch.pair.matcher.match(
        batch.user_rows,
        live.offsets,
        live.leaves,
        live.scores,
        [*(retrieval.max_ads for retrieval in retrievals), *[0] * padding],
        deny=[*(retrieval.exclude_ads for retrieval in retrievals), *[_NONE_DENIED] * padding],
    )


def _reply(
    batch: InputBatch,
    row: int,
    live: _LiveLeaves,
    matched: MatchedAds,
    spans: tuple[Span, ...],
    begin: float,
) -> bytes:
    request, pair = batch.requests[row], batch.batch.pair
    first, last = matched.offsets[row : row + 2].tolist()
    counts = matched.counts
    sids = None
    if request.retrieval.include_sids:
        own = slice(*live.offsets[row : row + 2].tolist())
        tokens = pair.snapshot.trie.sids(live.leaves[own])
        sids = GeneratedSids(tokens, live.scores[own], matched.leaf_positions[first:last])
    head = RetrieveResponse(
        request_id=request.retrieval.request_id,
        counts=Counts(
            sids_generated=int(live.offsets[row + 1] - live.offsets[row]),
            ads_generated=int(counts.generated[row]),
            ads_matched=int(counts.matched[row]),
            ads_returned=last - first,
        ),
        snapshot_version=pair.snapshot.facts.version,
        checkpoint=pair.checkpoint,
        ignored_names=batch.ignored[row],
        truncated=bool(counts.truncated[row]),
        profile=batch.batch.profile_name,
        timings=_timings(request, spans, begin),
    )
    return write_reply(head, matched.ad_ids[first:last], matched.scores[first:last], sids)


def _timings(request: PendingRequest, spans: tuple[Span, ...], begin: float) -> Timings:
    """All that was not spent in a stage is queue."""
    spent: Mapping[StageName, float] = {span.stage: span.end - span.begin for span in spans}
    return Timings(
        queue_us=_microseconds(begin - request.arrived - sum(spent.values())),
        input_us=_microseconds(spent.get("input", 0.0)),
        features_us=_microseconds(spent.get("features", 0.0)),
        generate_us=_microseconds(spent.get("generate", 0.0)),
        post_us=_microseconds(perf_counter() - begin),
    )


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1e6)), _MAX_UINT32)


def _counts_of(matched: MatchedAds, rows: list[int]) -> MatchCounts:
    counts = matched.counts
    return MatchCounts(
        generated=counts.generated[rows],
        attributes=counts.attributes[rows],
        sets=counts.sets[rows],
        paused=counts.paused[rows],
        denied=counts.denied[rows],
        matched=counts.matched[rows],
        returned=counts.returned[rows],
    )
