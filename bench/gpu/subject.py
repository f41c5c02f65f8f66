"""What is measured: the paper's model and catalogue, users and requests, or the same in tiny.

Weights are random (model.init), with two differences: rows of the large look-up tables are drawn
on the device, in seconds instead of minutes, and the self-attention's relative bias is zero,
because FlashAttention, the baseline, takes none.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from grace import configs
from grace.bench.gpu.catalogue import SEED
from grace.bench.gpu.options import BenchOptions
from grace.catalogues.paper import PAPER_SIDS
from grace.configs.generation import BeamProfile
from grace.kernels import Ops
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.init import load_model_config, random_model
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.definition.spec import (
    BagInput,
    EncoderSpec,
    InputSpec,
    InterFormerSpec,
    ModelSpec,
    SequenceInput,
)
from grace.model.engine.decode_weights import FastWeights
from grace.model.engine.prefix_memo import PrefixMemo

__all__ = [
    "Engine",
    "Subject",
    "contexts_of",
    "engine_of",
    "random_decoder_alone",
    "random_weights",
    "subject_of",
]

PAPER = Path(configs.__file__).parent / "paper.yaml"
MEMO_BYTES = 4 << 30  # both steps' prefixes of the paper's decoder are about 2.2 GB
TINY_SIDS = 3_000

_SMALL_ROWS = 64  # of look-up tables, while the other weights are drawn on the CPU
_TINY_BAGS = ("pages_followed", "searches")


@dataclass(frozen=True, slots=True)
class Subject:
    """
    fixed, dynamic   the paper's two beam schedules
    """

    spec: ModelSpec
    batch: int
    fixed: BeamProfile
    dynamic: BeamProfile
    default_sids: int
    memo_bytes: int


def subject_of(options: BenchOptions) -> Subject:
    loaded = load_model_config(PAPER)
    if options.tiny:
        return Subject(
            _tiny_spec(loaded.model),
            batch=3,
            fixed=BeamProfile((1, 11, 11, 11), 11),
            dynamic=BeamProfile((1, 7, 11, 11), 11),
            default_sids=TINY_SIDS,
            memo_bytes=1 << 20,
        )
    return Subject(
        loaded.model,
        batch=loaded.generation.max_batch,
        fixed=BeamProfile((1, 1024, 1024, 1024), 1024),
        dynamic=loaded.generation.profiles["full"],
        default_sids=PAPER_SIDS,
        memo_bytes=MEMO_BYTES,
    )


def random_weights(
    spec: ModelSpec, device: torch.device, features: torch.dtype = torch.float32, seed: int = SEED
) -> Model:
    """The model on the device, in float32 but for the features' tables, most of its size."""
    drawn = random_model(_with_rows(spec, _SMALL_ROWS), seed).state_dict()
    generator = torch.Generator(device).manual_seed(seed)
    model = empty_model(spec)
    state: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        dtype = features if name.startswith("features.") else torch.float32
        if weight.shape == drawn[name].shape:
            state[name] = drawn[name].to(device, dtype)
        else:
            drawn_there = torch.randn(weight.shape, generator=generator, device=device)
            state[name] = drawn_there.to(dtype)
    model.load_state_dict(state, assign=True)
    model.decoder.bias.data.zero_()
    return model.eval().requires_grad_(False)


def random_decoder_alone(spec: ModelSpec, device: torch.device) -> Model:
    """The same model to a decoder; the features' tables, gigabytes that nobody reads, are small."""
    return random_weights(_with_rows(spec, _SMALL_ROWS), device)


@dataclass(frozen=True)
class Engine:
    """The product's decoder in one precision; `plain` is what it was made of, in float32."""

    plain: Model
    weights: FastWeights
    memo: PrefixMemo
    ops: Ops


def engine_of(subject: Subject, model: Model, ops: Ops, dtype: torch.dtype) -> Engine:
    folded = FastWeights.of(model.decoder)
    memo = PrefixMemo.build(folded, dtype, subject.memo_bytes, ops)
    return Engine(model, folded.to(folded.device, dtype), memo, ops)


def contexts_of(
    subject: Subject, device: torch.device, dtype: torch.dtype, count: int
) -> list[UserContext]:
    """Full user contexts of `count` batches, normal as an encoder's last norm leaves them."""
    generator = torch.Generator(device).manual_seed(SEED)
    shape = (subject.batch, subject.spec.context_tokens, subject.spec.context_dim)
    states = [torch.randn(shape, generator=generator, device=device) for _ in range(count)]
    mask = torch.ones(shape[:2], dtype=torch.bool, device=device)
    return [UserContext(each.to(dtype), mask) for each in states]


def _with_rows(spec: ModelSpec, rows: int) -> ModelSpec:
    def smaller(value: InputSpec) -> InputSpec:
        if isinstance(value, BagInput):
            return replace(value, hash_rows=min(rows, value.hash_rows))
        return value

    return replace(spec, inputs={name: smaller(value) for name, value in spec.inputs.items()})


def _tiny_spec(spec: ModelSpec) -> ModelSpec:
    kept: dict[str, InputSpec] = {}
    for name, value in spec.inputs.items():
        if isinstance(value, SequenceInput):
            kept[name] = replace(value, max_length=5)
        elif not isinstance(value, BagInput) or name in _TINY_BAGS:
            kept[name] = value
    tiny = replace(
        spec,
        inputs=kept,
        encoder=EncoderSpec(
            interformer=InterFormerSpec(
                blocks=1,
                d_model=16,
                heads=2,
                d_ff=24,
                context_tokens=9,
                non_sequence_tokens=3,
                bag_dim=8,
            )
        ),
        decoder=replace(spec.decoder, layers=2, d_model=32, heads=2, d_head=16, d_ff=24),
    )
    return _with_rows(tiny, 2 * _SMALL_ROWS)
