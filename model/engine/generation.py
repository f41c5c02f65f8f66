"""Generation for the generate stage: features in, SIDs out, in one of three ways.

`PlainGeneration` is the definition, on any device. `FastGeneration` runs the encoder and the fast
loop in one precision, one operation after the other. `GraphGeneration` records it as CUDA graphs.

A batch has as many rows as one of the configuration's batch buckets. Requests have the first rows
and empty users the others, so every shape is known beforehand.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.options import Fp8Product
from grace.kernels import (
    AdmissionSlot,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
    load_encoder_ops,
)
from grace.model.definition.beam_search import Generated, beam_search, require_together
from grace.model.definition.inputs import FeatureTensors, map_tensors
from grace.model.definition.model import Model
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory
from grace.model.engine.decode_loop import fast_search
from grace.model.engine.decode_weights import PRECISIONS, FastWeights, Precision
from grace.model.engine.fast_encoder import fast_encoder
from grace.model.engine.feature_stage import FastStage, Features, FeatureStage, PlacedLookups
from grace.model.engine.prefix_memo import PrefixMemo
from grace.model.engine.rounded_weights import weights_in
from grace.model.engine.search_trace import SearchTrace


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How generation computes."""

    precision: Precision
    memo_bytes: int  # most memory for what the first steps compute once for every prefix
    # the decoder's products that stay in bf16 with precision fp8
    fp8_keep: tuple[Fp8Product, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchTask:
    """The users, index, profile and trace of one search."""

    users: UserTensors
    index: DecodeIndex
    profile: BeamProfile
    trace: SearchTrace | None = None


class Generation(Protocol):
    """Generation with one checkpoint, for any snapshot of its SID space."""

    @property
    def memo(self) -> PrefixMemo | None:
        """None where nothing is computed beforehand."""

    def generate(self, features: Features, task: SearchTask) -> Generated:
        """Generate on the current stream. The result is in the CPU's memory, for the caller alone.

        Recorded generation does not wait for the stream. Then the arguments must live until the
        stream has done the work, and the result is readable from then on. With a trace every
        generation waits, and the batch may have any size.
        """


def generation_for(
    model: Model,
    ops: Ops,
    settings: EngineSettings,
    config: GenerationConfig,
    stage: FeatureStage,
) -> Generation:
    """Return the generation for the features of a stage. On a GPU, record all its graphs."""
    if isinstance(stage, FastStage):
        fast = FastGeneration(model, ops, settings)
        return GraphGeneration(fast, stage, config.batch_buckets, config.profiles.values())
    precision, device = settings.precision, model.decoder.start.device
    if precision != "fp32":
        raise ConfigError(f"precision: {precision} needs a GPU; on device {device} use fp32")
    return PlainGeneration(model, ops)


class PlainGeneration:
    """The definition: for a CPU, and to compare the others with."""

    memo: PrefixMemo | None = None

    def __init__(self, model: Model, ops: Ops) -> None:
        self._model = model
        self._ops = ops

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        decoder, context = self._model.decoder, self._model.encoder(at_once(features))
        ops = self._ops if task.trace is None else task.trace.of(self._ops)
        found = beam_search(decoder, context, task.users, task.index, task.profile, ops)
        return map_tensors(found, torch.Tensor.cpu)


class FastGeneration:
    """It copies the model's weights, which are in float32, and keeps the copies on their device.

    Products share a workspace. So only one batch runs at a time, here or in graphs of this object.
    """

    def __init__(self, model: Model, ops: Ops, settings: EngineSettings) -> None:
        folded = FastWeights.of(model.decoder)
        precision, dtype = settings.precision, PRECISIONS[settings.precision]
        self.dtype = dtype
        self.device = folded.device
        self.vocab_sizes = folded.vocab_sizes
        self.ops = ops
        self.memo = PrefixMemo.build(folded, dtype, settings.memo_bytes, ops)
        self._weights = weights_in(folded, precision, settings.fp8_keep)
        self._encoder = fast_encoder(model, dtype, load_encoder_ops(self.device))

    @torch.inference_mode()
    def search(self, features: Features, slot: AdmissionSlot, profile: BeamProfile) -> Tensor:
        """Search by features in this object's precision; return `Generated.packed`."""
        return self._search(at_once(features), slot, profile, self.ops).packed()

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        require_together(self.vocab_sizes, task.index, task.profile)
        slot = admission_slot(self.ops)
        slot.point_at(task.users, task.index)
        ops = self.ops if task.trace is None else task.trace.of(self.ops)
        found = self._search(at_once(features).to(self.dtype), slot, task.profile, ops)
        return map_tensors(found, torch.Tensor.cpu)

    def _search(
        self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile, ops: Ops
    ) -> Generated:
        context = self._encoder(features)
        found = fast_search(self._weights, self.memo, context, slot, profile, ops)
        return Generated(slot.leaves_of(found.nodes), found.scores, found.corrupt)


class GraphGeneration:
    """One CUDA graph of `FastGeneration.search` per batch bucket and beam profile.

    Before a replay, the graph gets the addresses of a batch's row numbers, and the admission slot
    points at its users and snapshot; after it, one copy brings the result to the CPU's memory. So
    no graph holds an address of a snapshot. All graphs share memory, slot and inputs: one batch
    runs at a time. Batches of any thread and stream wait for each other on the GPU. A generation
    shares nothing with others, so a new checkpoint or snapshot warms up while others serve.
    """

    def __init__(
        self,
        fast: FastGeneration,
        stage: FastStage,
        buckets: Collection[int],
        profiles: Iterable[BeamProfile],
    ) -> None:
        """Record all graphs, which takes seconds. Other threads may use the GPU meanwhile."""
        self._fast = fast
        self.memo = fast.memo
        self._slot = admission_slot(fast.ops)
        self._memory = GraphMemory(fast.device)
        self._lock = Lock()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._inputs: dict[int, PlacedLookups] = {}
        self._calls: dict[tuple[int, BeamProfile], GraphedCall[Tensor]] = {}
        index = one_sid_index(fast.vocab_sizes, fast.device)
        widest_first = sorted(set(profiles), key=lambda profile: -sum(profile.beams))
        for profile in widest_first:
            require_together(fast.vocab_sizes, index, profile)
        for bucket in sorted(set(buckets), reverse=True):
            inputs = self._inputs[bucket] = stage.recorded(bucket)
            bitmask = torch.zeros((bucket, 1), dtype=torch.int64, device=fast.device)
            self._slot.point_at(UserTensors.asking(bitmask), index)
            for profile in widest_first:
                search = partial(fast.search, inputs, self._slot, profile)
                self._calls[bucket, profile] = GraphedCall(search, self._memory)
        self._done.record(torch.cuda.current_stream(fast.device))

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        if task.trace is not None:
            with self._turn():  # without a graph, one operation after the other
                return self._fast.generate(features, task)
        users, profile = task.users, task.profile
        require_together(self._fast.vocab_sizes, task.index, profile)
        bucket = len(users.bitmask)
        call = self._calls.get((bucket, profile))
        if call is None:
            raise ConfigError(
                f"a batch of {bucket} with beams {list(profile.beams)} was not captured: buckets "
                f"{sorted(self._inputs)}; give the profile when generation is made"
            )
        with self._turn():
            self._slot.point_at(users, task.index)
            self._place(features, bucket)
            call.replay()
            return Generated.unpacked(started_copy(call.result), bucket)

    def _place(self, features: Features, bucket: int) -> None:
        """Let the graphs of this bucket read a batch's features."""
        inputs = self._inputs[bucket]
        if not isinstance(features, PlacedLookups) or features.stage is not inputs.stage:
            raise ValueError("features must be those of the model that generation was made for")
        if features.batch != bucket:
            raise ValueError(f"features must be of {bucket} requests, got {features.batch}")
        inputs.at.copy_(features.at, non_blocking=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the batch before on the GPU. The next one waits for whatever this one queues."""
        with self._lock:
            stream = torch.cuda.current_stream(self._fast.device)
            stream.wait_event(self._done)
            try:
                yield
            finally:
                self._done.record(stream)


def at_once(features: Features) -> FeatureTensors:
    return features.compute() if isinstance(features, PlacedLookups) else features


def started_copy(tensor: Tensor) -> Tensor:
    """Return a copy in the CPU's memory, which is there once the current stream is done."""
    pinned = tensor.device.type == "cuda"
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    return copy.copy_(tensor, non_blocking=True)


def one_sid_index(vocab_sizes: tuple[int, ...], device: torch.device) -> DecodeIndex:
    """Return a catalogue of one SID without matchers, to record with before a snapshot is there."""
    length = len(vocab_sizes)
    return DecodeIndex(
        vocab_sizes=vocab_sizes,
        first_leaf=length,
        node_offsets=torch.arange(length + 1, dtype=torch.int32, device=device),
        csr_tokens=torch.zeros(length, dtype=torch.int32, device=device),
    )
