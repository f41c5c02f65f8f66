"""Generation for the generate stage: features in, SIDs out.

`PlainGeneration` is the definition. Each family of models has a folder with a fast generation that
runs one operation after the other. `GraphGeneration` records it as CUDA graphs.

A batch has as many rows as one of the configuration's batch buckets. Requests have the first rows
and empty users the others, so every shape is known beforehand.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from grace.configs.generation import BeamProfile
from grace.configs.options import Fp8Product
from grace.kernels import AdmissionSlot, DecodeIndex, Ops, UserTensors, admission_slot
from grace.model.definition.beam_search import (
    Generated,
    SearchableDecoder,
    beam_search,
    require_together,
)
from grace.model.definition.inputs import Prompts, map_tensors
from grace.model.definition.model import AnyModel
from grace.model.engine.feature_stage import Features, at_once
from grace.model.engine.precision import Precision
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
    users: UserTensors
    index: DecodeIndex
    profile: BeamProfile
    trace: SearchTrace | None = None

    def begin(self, vocab_sizes: tuple[int, ...], ops: Ops) -> tuple[AdmissionSlot, Ops]:
        """Return a slot that points at users and index, and the operations that the trace notes."""
        require_together(vocab_sizes, self.index, self.profile)
        slot = admission_slot(ops)
        slot.point_at(self.users, self.index)
        return slot, self.traced(ops)

    def traced(self, ops: Ops) -> Ops:
        return ops if self.trace is None else self.trace.of(ops)


class Memo(Protocol):
    """Tables with a row per prefix of the first steps, computed once for all requests."""

    @property
    def steps(self) -> int: ...
    @property
    def size(self) -> int: ...  # bytes of all tables
    @property
    def next_size(self) -> int: ...  # bytes of the next step's; 0 if there is no next step


class Generation(Protocol):
    """Generation with one checkpoint, for any snapshot of its SID space."""

    @property
    def memo(self) -> Memo | None:
        """None where nothing is computed beforehand."""

    @property
    def fp8_products(self) -> tuple[Fp8Product, ...]:
        """The decoder's products that compute with e4m3."""

    @property
    def fp8_clipped(self) -> int:
        """The numbers that additions in fp8 have clipped, but for the batches under way. It does
        not wait for a GPU that records graphs."""

    @property
    def graphs(self) -> int:
        """The number of CUDA graphs that it recorded."""

    def generate(self, features: Features, task: SearchTask) -> Generated:
        """Generate on the current stream. The result is in the CPU's memory, for the caller alone.

        Recorded generation does not wait for the stream. Then the arguments must live until the
        stream has done the work, and the result is readable from then on. With a trace every
        generation waits, and the batch may have any size.
        """


class PlainGeneration:
    """The definition of any family: for a CPU, and to compare the others with."""

    memo = None
    fp8_products: tuple[Fp8Product, ...] = ()
    fp8_clipped = graphs = 0

    def __init__(self, model: AnyModel, ops: Ops) -> None:
        self._model = model
        self._ops = ops

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        decoder: SearchableDecoder[Any, Any] = self._model.decoder
        given = features if isinstance(features, Prompts) else at_once(features)
        context = self._model.encoder(given)
        ops = task.traced(self._ops)
        found = beam_search(decoder, context, task.users, task.index, task.profile, ops)
        return map_tensors(found, torch.Tensor.cpu)
