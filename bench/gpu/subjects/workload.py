"""What a benchmark measures: the paper's model and catalogue, or tiny ones, on one device.

Weights are random (model.init), with two differences: rows of the large look-up tables are drawn on
the device, in seconds instead of minutes, and the self-attention's relative bias is zero, because
FlashAttention, the baseline, takes none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace import configs
from grace.bench.gpu.instruments.measure import RecordedGraph, Timing, sustained
from grace.bench.gpu.subjects.catalogue import SEED, Catalogue
from grace.bench.options import BenchOptions
from grace.catalogues.paper.spec import PAPER_SIDS
from grace.configs.generation import BeamProfile
from grace.kernels import Ops, load_ops, load_rounded_ops
from grace.kernels.products.fp8_products import RoundedOps
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.init import load_model_config, random_model
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.definition.spec import BagInput, InputSpec, SequenceInput
from grace.model.definition.t5_spec import EncoderDecoderSpec, EncoderSpec, InterFormerSpec
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.encoder_decoder.rounded_weights import weights_in
from grace.model.engine.precision import PRECISIONS, Precision

PAPER = Path(configs.__file__).parent / "paper.yaml"
BATCHES = 4
"""Batches of users and contexts that take turns."""

_MEMO_BYTES = 4 << 30  # both steps' prefixes of the paper's decoder are about 2.2 GB
_TINY_SIDS = 3_000
_TINY_USERS = 7
_USERS = 512
_SMALL_ROWS = 64  # of look-up tables, while the other weights are drawn on the CPU
_TINY_BAGS = ("pages_followed", "searches")

T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """The product's decoder in one precision; `plain` is the model it was made of, in float32."""

    plain: Model
    weights: FastWeights
    memo: PrefixMemo
    ops: Ops

    @property
    def vocabulary(self) -> int:
        return max(self.weights.vocab_sizes)


@dataclass(frozen=True, slots=True)
class Workload:
    """
    fixed, dynamic   the paper's two beam schedules
    load_ops         returns the operations that the engine computes with
    recorder         makes a graph of a function
    """

    options: BenchOptions
    spec: EncoderDecoderSpec
    batch: int
    fixed: BeamProfile
    dynamic: BeamProfile
    default_sids: int
    default_users: int
    memo_bytes: int
    load_ops: Callable[[torch.device], Ops] = load_ops
    recorder: type[RecordedGraph[Any]] = RecordedGraph

    @property
    def device(self) -> torch.device:
        return torch.device(self.options.device)

    @property
    def rounded(self) -> RoundedOps:
        """The products of precision fp8."""
        return load_rounded_ops(self.device)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def sids(self) -> int:
        return self.options.sids[0] if self.options.sids else self.default_sids

    @property
    def users(self) -> int:
        return self.options.users[0] if self.options.users else self.default_users

    def catalogue(self) -> Catalogue:
        return Catalogue(self.sids, self.options.commit_cache)

    def record(self, function: Callable[[], T]) -> RecordedGraph[T]:
        return self.recorder(function, self.device)

    def record_calls(self, calls: Sequence[Callable[[], T]]) -> RecordedGraph[list[T]]:
        """Record all calls, one after the other, as one graph, which returns their results."""
        return self.record(lambda: [call() for call in calls])

    def timed_calls(
        self, calls: Sequence[Callable[[], T]], check: Callable[[int, T], None] | None
    ) -> Timing:
        """Record the calls as one graph, check what each one leaves there, and time one call."""
        run = self.record_calls(calls)
        if check is not None:
            for place, got in enumerate(run()):
                check(place, got)
        return sustained(run, self.device, self.options.seconds, calls=len(calls))

    def engine(self, model: Model, precision: Precision) -> Engine:
        dtype, ops = PRECISIONS[precision], self.load_ops(self.device)
        folded = FastWeights.of(model.decoder)
        memo = PrefixMemo.build(folded, dtype, self.memo_bytes, ops)
        return Engine(model, weights_in(folded, precision), memo, ops)

    def random_engine(self, precision: Precision) -> Engine:
        return self.engine(random_decoder_alone(self.spec, self.device), precision)

    def contexts(self, dtype: torch.dtype, count: int) -> list[UserContext]:
        """Full user contexts of `count` batches, normal as an encoder's last norm leaves them."""
        generator = torch.Generator(self.device).manual_seed(SEED)
        shape = (self.batch, self.spec.context_tokens, self.spec.context_dim)
        states = [torch.randn(shape, generator=generator, device=self.device) for _ in range(count)]
        mask = torch.ones(shape[:2], dtype=torch.bool, device=self.device)
        return [UserContext(each.to(dtype), mask) for each in states]


def workload_of(options: BenchOptions) -> Workload:
    loaded = load_model_config(PAPER)
    assert isinstance(loaded.model, EncoderDecoderSpec)
    if options.tiny:
        return Workload(
            options,
            _tiny_spec(loaded.model),
            batch=3,
            fixed=BeamProfile((1, 11, 11, 11), 11),
            dynamic=BeamProfile((1, 7, 11, 11), 11),
            default_sids=_TINY_SIDS,
            default_users=_TINY_USERS,
            memo_bytes=1 << 20,
        )
    return Workload(
        options,
        loaded.model,
        batch=loaded.generation.max_batch,
        fixed=BeamProfile((1, 1024, 1024, 1024), 1024),
        dynamic=loaded.generation.profiles["full"],
        default_sids=PAPER_SIDS,
        default_users=_USERS,
        memo_bytes=_MEMO_BYTES,
    )


def random_weights(
    spec: EncoderDecoderSpec, device: torch.device, features: torch.dtype = torch.float32
) -> Model:
    """Return the model on the device, in float32 except the feature tables, most of its size."""
    drawn = random_model(_with_rows(spec, _SMALL_ROWS), SEED).state_dict()
    generator = torch.Generator(device).manual_seed(SEED)
    model = empty_model(spec)
    assert isinstance(model, Model)
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


def random_decoder_alone(spec: EncoderDecoderSpec, device: torch.device) -> Model:
    """Return the same decoder in a model whose feature tables, unused gigabytes, are small."""
    return random_weights(_with_rows(spec, _SMALL_ROWS), device)


def _with_rows(spec: EncoderDecoderSpec, rows: int) -> EncoderDecoderSpec:
    def smaller(value: InputSpec) -> InputSpec:
        if isinstance(value, BagInput):
            return replace(value, hash_rows=min(rows, value.hash_rows))
        return value

    return replace(spec, inputs={name: smaller(value) for name, value in spec.inputs.items()})


def _tiny_spec(spec: EncoderDecoderSpec) -> EncoderDecoderSpec:
    kept: dict[str, InputSpec] = {}
    for name, value in spec.inputs.items():
        if isinstance(value, SequenceInput):
            kept[name] = replace(value, max_length=5)
        elif not isinstance(value, BagInput) or name in _TINY_BAGS:
            kept[name] = value
    interformer = InterFormerSpec(
        blocks=1, d_model=16, heads=2, d_ff=24, context_tokens=9, non_sequence_tokens=3, bag_dim=8
    )
    tiny = replace(
        spec,
        inputs=kept,
        encoder=EncoderSpec(interformer=interformer),
        decoder=replace(spec.decoder, layers=2, d_model=128, heads=2, d_head=64, d_ff=128),
    )
    return _with_rows(tiny, 2 * _SMALL_ROWS)
