"""Generation with CUDA graphs, for the engine of any family."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, DecodeIndex, Ops, UserTensors, admission_slot
from grace.model.definition.beam_search import Generated, require_together
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory
from grace.model.engine.feature_stage import Features
from grace.model.engine.generation import Generation, SearchTask

Stage = TypeVar("Stage", contravariant=True)
Inputs = TypeVar("Inputs")


class FastEngine(Generation, Protocol[Stage, Inputs]):
    """What `GraphGeneration` records: the search of one checkpoint on a GPU.

    Its own `graphs` come before those of the search, and `generate` runs one operation after the
    other.
    """

    vocab_sizes: tuple[int, ...]
    device: torch.device
    ops: Ops
    clipped: Tensor | None  # int64 [1] on the device: what `fp8_clipped` counts

    def recorded(self, stage: Stage, bucket: int, memory: GraphMemory) -> Inputs:
        """Return what the graphs of a bucket read, and record what comes before them."""

    def place(self, inputs: Inputs, features: Features) -> None:
        """Let the graphs of these inputs read a batch's features."""

    def search(self, inputs: Inputs, slot: AdmissionSlot, profile: BeamProfile) -> Tensor:
        """Search; return `Generated.packed`."""


class GraphGeneration(Generic[Stage, Inputs]):
    """One CUDA graph of an engine's search per batch bucket and beam profile.

    Before a replay, the engine places a batch's features, and the admission slot points at its
    users and snapshot; after it, one copy brings the result to the CPU's memory. So no graph holds
    an address of a snapshot. All graphs share memory, slot and inputs: one batch runs at a time.
    Batches of any thread and stream wait for each other on the GPU. A generation shares nothing
    with others, so a new checkpoint or snapshot warms up while others serve.
    """

    def __init__(
        self,
        fast: FastEngine[Stage, Inputs],
        stage: Stage,
        buckets: Collection[int],
        profiles: Iterable[BeamProfile],
    ) -> None:
        """Record all graphs, which takes seconds. Other threads may use the GPU meanwhile."""
        self._fast = fast
        self.memo, self.fp8_products = fast.memo, fast.fp8_products
        self._slot = admission_slot(fast.ops)
        # In the CPU's memory, so that who reads it never waits for the GPU.
        self._clipped = torch.zeros(1, dtype=torch.int64, pin_memory=fast.device.type == "cuda")
        self._memory = GraphMemory(fast.device)
        self._lock = Lock()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._inputs: dict[int, Inputs] = {}
        self._calls: dict[tuple[int, BeamProfile], GraphedCall[Tensor]] = {}
        index = one_sid_index(fast.vocab_sizes, fast.device)
        widest_first = sorted(set(profiles), key=lambda profile: -sum(profile.beams))
        for profile in widest_first:
            require_together(fast.vocab_sizes, index, profile)
        for bucket in sorted(set(buckets), reverse=True):
            inputs = self._inputs[bucket] = fast.recorded(stage, bucket, self._memory)
            bitmask = torch.zeros((bucket, 1), dtype=torch.int64, device=fast.device)
            self._slot.point_at(UserTensors.asking(bitmask), index)
            for profile in widest_first:
                search = partial(fast.search, inputs, self._slot, profile)
                self._calls[bucket, profile] = GraphedCall(search, self._memory)
        self._done.record(torch.cuda.current_stream(fast.device))

    @property
    def fp8_clipped(self) -> int:
        return int(self._clipped)

    @property
    def graphs(self) -> int:
        return len(self._calls) + self._fast.graphs

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
            self._fast.place(self._inputs[bucket], features)
            call.replay()
            if self._fast.clipped is not None:
                self._clipped.copy_(self._fast.clipped, non_blocking=True)
            return Generated.unpacked(started_copy(call.result), bucket)

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


def started_copy(tensor: Tensor) -> Tensor:
    """Return a copy in the CPU's memory, which is there once the current stream is done."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
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
