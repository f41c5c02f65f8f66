"""The four stages: pure functions from one batch to the next.

They know no thread, stream or queue, which are the pipeline's: on a GPU each runs on a stream of
its own, and no stage waits for the device.

    input     requests to the rows and tensors that the model reads
    features  and generate: what the model makes of them, up to SIDs
    post      generated leaves to ads, exactly matched, and to the bytes of each reply
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from time import perf_counter, time_ns
from typing import TypeVar

import numpy as np

from grace.index.matching.exact import HeldAds, MatchCounts
from grace.index.trie import NO_NODE
from grace.kernels import UserTensors
from grace.model.engine.device_copy import Staging
from grace.model.engine.generation import SearchTask
from grace.model.engine.search_trace import SearchTrace
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError, internal, invalid_field, refusal_of
from grace.server.messages import (
    STAGE_NAMES,
    Answer,
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    PendingRequest,
    RequestBatch,
    Retrieval,
    Span,
    queue_seconds,
)
from grace.server.stages.replies import Leaves, ReplyHeads, write_replies

_MAX_UINT32 = 2**32 - 1
_NO_ADS = np.empty(0, np.int64)
_Value = TypeVar("_Value")
_Given = TypeVar("_Given", bound=Sized)


@dataclass(frozen=True, slots=True)
class Stages:
    """What a pipeline runs, in this order.

    If `input` leaves no request, the batch ends there. `post` is given the spans of the stages
    before it, for the times in each reply.
    """

    input: Callable[[RequestBatch], InputBatch]
    features: Callable[[InputBatch], FeatureBatch]
    generate: Callable[[FeatureBatch], GeneratedBatch]
    post: Callable[[GeneratedBatch, tuple[Span, ...]], AnsweredBatch]


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    """Have C++ read all requests of the batch together, each into its row.

    What one of them does wrong fails that request alone: the others are then read again, without
    it. The users come first. A GPU then makes their masks of eligible nodes while C++ reads the
    features.
    """
    failures: list[Failure] = []
    at = time_ns() // 1_000_000
    wrong = [_wrong_pair(each.retrieval, batch.pair) for each in batch.requests]
    requests = _without_faults(batch.requests, wrong, failures)
    made, faults = _read_requests(batch, requests, at)
    if any(faults):
        requests = _without_faults(requests, faults, failures)
        staged = made.staged
        del made  # its masks make room for the next ones
        made, _ = _read_requests(batch, requests, at)
        made = replace(made, staged=(*staged, *made.staged))  # a copy may still read the first
    return replace(made, failures=tuple(failures))


def _read_requests(
    batch: RequestBatch, requests: Sequence[PendingRequest], at: int
) -> tuple[InputBatch, list[ServiceError | None]]:
    """Read the requests, each into its row, and fill the bucket with empty rows. Also return the
    fault of each request, or None. The row of a faulty request is empty."""
    pair = batch.pair
    messages = [request.retrieval.message for request in requests]
    for_users, for_features = Staging(pair.model.blocks), Staging(pair.model.blocks)
    of_users = pair.users.read(messages, batch.bucket, for_users.arrays, now=at)
    users = UserTensors.given(of_users.rows, for_users.send(of_users.rows.arrays()))
    if not any(of_users.faults):  # otherwise these rows are not the batch's
        users = pair.with_eligible(users)
    of_features, compute = pair.model.features.read(messages, batch.bucket, for_features)
    entities = {*pair.snapshot.schema.entities}
    # Rows of padding, which have no request, come last.
    retrievals = (request.retrieval for request in requests)
    of_requests = zip(retrievals, of_users.rows.ignored, of_features.ignored, strict=False)
    ignored = tuple(
        tuple(sorted({*of_user, *by_model, *({*each.exclude, *each.at_most} - entities)}))
        for each, of_user, by_model in of_requests
    )
    found = zip(requests, of_features.faults, of_users.faults, ignored, strict=True)
    faults = [
        refusal_of(fault, "RetrieveRequest")
        if (fault := one or other)
        else _unknown_name(request.retrieval, names, pair)
        for request, one, other, names in found
    ]
    made = InputBatch(
        batch=batch,
        requests=tuple(requests),
        failures=(),
        ignored=ignored,
        at=at,
        user_rows=of_users.rows,
        users=users,
        features=compute,
        staged=(for_users, for_features),
    )
    return made, faults


def _unknown_name(
    retrieval: Retrieval, ignored: tuple[str, ...], pair: ServingPair
) -> ServiceError | None:
    """Return the refusal of a strict request that has a name which would be ignored."""
    if not (retrieval.strict and ignored):
        return None
    schema = pair.snapshot.schema
    filters = [f"filters.{each.name}" for each in schema.properties]
    names = (*schema.user_names, *filters, *schema.entities, *pair.model.spec.input_kinds)
    known = ", ".join(names)
    fault = f"no such name, and the request is strict; known: {known}; correct the name"
    return invalid_field(ignored[0], f"{fault}, or send the request without strict", "strict")


def _without_faults(
    requests: Sequence[PendingRequest],
    faults: Sequence[ServiceError | None],
    failures: list[Failure],
) -> list[PendingRequest]:
    """Return the requests without a fault, and add the others to the failures."""
    pairs = [*zip(requests, faults, strict=True)]
    failures += [Failure(request, fault) for request, fault in pairs if fault is not None]
    return [request for request, fault in pairs if fault is None]


def _wrong_pair(retrieval: Retrieval, pair: ServingPair) -> ServiceError | None:
    loaded = pair.snapshot.facts.sid_space
    if retrieval.model and retrieval.model != pair.checkpoint:
        text = f"model: {retrieval.model!r} is asked for, but {pair.checkpoint!r} is loaded"
        remedy = "send its id, or none to take whichever is loaded"
        return ServiceError("wrong_model", f"{text}; {remedy}", "model")
    if retrieval.sid_space and retrieval.sid_space != loaded:
        text = f"sid_space: the sequences are in {retrieval.sid_space!r}, but {loaded!r} is loaded"
        return ServiceError("wrong_sid_space", f"{text}; send SIDs of that space", "sid_space")
    return None


def generate_sids(batch: FeatureBatch, trace: SearchTrace | None = None) -> GeneratedBatch:
    bound = batch.input.batch
    task = SearchTask(batch.input.users, bound.pair.index, bound.profile, trace)
    generated = bound.pair.model.generation.generate(batch.features, task)
    return GeneratedBatch(batch.input, generated.leaves, generated.scores, generated.corrupt)


def answer_requests(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """Answer a batch; its replies report the times of the earlier stages from `spans`."""
    begin = perf_counter()
    requests = batch.input.requests
    corrupt = batch.corrupt.numpy()[: len(requests)].tolist()
    sound = [row for row in range(len(requests)) if not corrupt[row]]
    leaves = _leaves_of(batch, sound)
    with held_ads(batch.input, leaves) as ads:
        heads = _heads(batch.input, sound, spans, begin)
        replies = write_replies(ads, heads, leaves, batch.input.batch.pair.snapshot.trie)
        counts = ads.counts
    if len(sound) < len(counts.sids):
        counts = MatchCounts(*(getattr(counts, each.name)[sound] for each in fields(counts)))
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


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1e6)), _MAX_UINT32)


def _heads(
    batch: InputBatch, rows: Sequence[int], spans: tuple[Span, ...], begin: float
) -> ReplyHeads:
    """Return the other fields of these rows' replies. `queue` is all time outside stages."""
    waited = queue_seconds(batch.requests, (*spans, Span("post", begin, begin)))
    spent = {span.stage: span.end - span.begin for span in spans}
    stages = [_microseconds(spent.get(stage, 0.0)) for stage in STAGE_NAMES[:-1]]
    post = _microseconds(perf_counter() - begin)
    timings = np.array([(_microseconds(waited[row]), *stages, post) for row in rows], np.uint32)
    retrievals = [batch.requests[row].retrieval for row in rows]
    asks_the_time = batch.batch.pair.snapshot.schema.asks_the_time
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
        times=[retrieval.at or batch.at for retrieval in retrievals] if asks_the_time else None,
        labels=batch.user_rows.encoder.labels,
    )


STAGES = Stages(
    input=prepare_inputs,
    features=lambda batch: FeatureBatch(batch, batch.features()),
    generate=generate_sids,
    post=answer_requests,
)
