"""The four stages: pure functions from one batch to the next.

They know no thread, stream or queue, which are the pipeline's: on a GPU each runs on a stream of
its own, and no stage waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
    return FeatureBatch(batch, batch.batch.pair.model.features.compute(batch.inputs))


def generate_sids(batch: FeatureBatch, trace: SearchTrace | None = None) -> GeneratedBatch:
    bound = batch.input.batch
    generated = bound.pair.model.generation.generate(
        batch.features, batch.input.users, bound.pair.index, bound.profile, trace
    )
    return GeneratedBatch(
        batch.input,
        _on_the_host(generated.leaves),
        _on_the_host(generated.scores),
        _on_the_host(generated.corrupt),
    )


def generate_traced(batch: FeatureBatch, trace: SearchTrace) -> GeneratedBatch:
    """Generate outside the pipeline, and wait for the result."""
    generated = generate_sids(batch, trace)
    device = batch.input.batch.pair.device
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return generated


def _on_the_host(tensor: Tensor) -> Tensor:
    """Without waiting: what comes from a GPU is readable once the work on its stream is done."""
    if tensor.device.type == "cpu":
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


STAGES = Stages(
    input=prepare_inputs,
    features=compute_features,
    generate=generate_sids,
    post=answer_requests,
)
