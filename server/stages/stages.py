"""The four stages: pure functions from one batch to the next.

They know no thread, stream or queue, which are the pipeline's: on a GPU each runs on a stream of
its own, and no stage waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

from grace.model.engine.search_trace import SearchTrace
from grace.server.messages import (
    AnsweredBatch,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    RequestBatch,
    Span,
)
from grace.server.stages.input_stage import prepare_inputs
from grace.server.stages.post_stage import answer_requests


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


def compute_features(batch: InputBatch) -> FeatureBatch:
    return FeatureBatch(batch, batch.features())


def generate_sids(batch: FeatureBatch, trace: SearchTrace | None = None) -> GeneratedBatch:
    bound = batch.input.batch
    generated = bound.pair.model.generation.generate(
        batch.features, batch.input.users, bound.pair.index, bound.profile, trace
    )
    return GeneratedBatch(batch.input, generated.leaves, generated.scores, generated.corrupt)


STAGES = Stages(
    input=prepare_inputs,
    features=compute_features,
    generate=generate_sids,
    post=answer_requests,
)
