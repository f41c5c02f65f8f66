"""A checkpoint on a device, in the precision that it serves in, ready to run for any snapshot."""

import math
from dataclasses import dataclass
from time import perf_counter

import torch

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.serving import PrecisionSetting
from grace.kernels import load_ops
from grace.model.definition.model import Model
from grace.model.definition.spec import ModelSpec
from grace.model.engine.fast_weights import PRECISIONS, Precision
from grace.model.engine.feature_stage import FeatureStage, feature_stage_for
from grace.model.engine.generation import Generation, generation_for
from grace.model.engine.prefix_memo import PrefixMemo

__all__ = ["EngineFacts", "ServingModel", "precision_of", "serving_model"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How generation runs, told once it is ready.

    memo_steps, memo_bytes  the first steps that look prefixes up, and what their tables take; none
                            on a CPU
    next_memo_bytes         what the next step's tables would take; 0 if there is no next one
    graphs                  recorded on a GPU, one for each batch size and beam profile
    capture_seconds         for folding the weights, the memo and all graphs
    """

    precision: Precision
    memo_steps: int
    memo_bytes: int
    next_memo_bytes: int
    graphs: int
    capture_seconds: float


@dataclass(frozen=True, eq=False)
class ServingModel:
    """Any number of snapshots may be served with it, of which a batch is bound to one."""

    spec: ModelSpec
    checkpoint: str  # its id
    device: torch.device
    features: FeatureStage
    generation: Generation
    engine: EngineFacts


def precision_of(setting: PrecisionSetting, device: torch.device) -> Precision:
    """What `auto` is on a device; refuses what the device does not do."""
    if setting == "auto":
        return "fp32" if device.type == "cpu" else "bf16"
    if device.type == "cpu" and setting != "fp32":
        raise ConfigError(f"precision: {setting} needs a GPU; on device {device} use fp32 or auto")
    return setting


def serving_model(
    model: Model,
    checkpoint: str,
    precision: Precision,
    memo_bytes: int,
    generation: GenerationConfig,
) -> ServingModel:
    """On a GPU everything is a copy of its own: the model itself can be dropped."""
    device = model.decoder.start.device
    begin = perf_counter()
    made = generation_for(model, load_ops(device), precision, memo_bytes, generation)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = perf_counter() - begin
    return ServingModel(
        spec=model.spec,
        checkpoint=checkpoint,
        device=device,
        features=feature_stage_for(model, PRECISIONS[precision]),
        generation=made,
        engine=_facts(made, model.spec, precision, generation, seconds),
    )


def _facts(
    made: Generation,
    spec: ModelSpec,
    precision: Precision,
    generation: GenerationConfig,
    seconds: float,
) -> EngineFacts:
    memo = made.memo
    if memo is None:
        return EngineFacts(precision, 0, 0, 0, graphs=0, capture_seconds=0.0)
    return EngineFacts(
        precision=precision,
        memo_steps=memo.steps,
        memo_bytes=memo.size,
        next_memo_bytes=_next_memo_bytes(memo, spec),
        graphs=len(generation.batch_buckets) * len({*generation.profiles.values()}),
        capture_seconds=seconds,
    )


def _next_memo_bytes(memo: PrefixMemo, spec: ModelSpec) -> int:
    if memo.steps == spec.sid_length:
        return 0
    of_a_prefix = memo.states[0].nbytes + memo.queries[0].nbytes
    return math.prod(spec.vocab_sizes[: memo.steps]) * of_a_prefix
