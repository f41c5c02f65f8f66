"""Streams, events and graphs that note what is asked of them, so that a GPU's order can be tested
where there is none. What runs on them runs at once; a graph runs again what it was told to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine import cuda_graphs
from grace.model.engine.decode_loop import FoundNodes
from grace.model.engine.generation import FastGeneration

__all__ = ["NotedCuda", "NotedStream", "ReplayableGeneration", "noted_cuda"]


@dataclass
class NotedCuda:
    notes: list[str] = field(default_factory=list)
    streams: list["NotedStream"] = field(default_factory=list)
    recording: "_Graph | None" = None

    def new_stream(self, device: torch.device | None = None) -> "NotedStream":
        name = chr(ord("A") + len(self.streams))
        self.streams.append(NotedStream(self, name, device or torch.device("cpu")))
        return self.streams[-1]

    def taken(self) -> list[str]:
        """The notes since the last time."""
        notes = self.notes[:]
        self.notes.clear()
        return notes


@dataclass(eq=False)
class NotedStream:
    cuda: NotedCuda
    name: str
    device: torch.device

    def wait_stream(self, other: "NotedStream") -> None:
        self.cuda.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "_Event") -> None:
        self.cuda.notes.append(f"{self.name} waits for what {event.stream} had")

    def synchronize(self) -> None:
        self.cuda.notes.append(f"all wait for {self.name}")


@dataclass
class _Event:
    cuda: NotedCuda
    stream: str = "nobody"

    def record(self, stream: NotedStream) -> None:
        self.stream = stream.name
        self.cuda.notes.append(f"{stream.name} is noted")


@dataclass(eq=False)
class _Graph:
    cuda: NotedCuda
    body: Callable[[], object] | None = None

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:  # noqa: ARG002
        assert capture_error_mode == "thread_local"
        self.cuda.recording = self
        self.cuda.notes.append("recording begins")

    def capture_end(self) -> None:
        self.cuda.recording = None
        self.cuda.notes.append("recording ends")

    def replay(self) -> None:
        self.cuda.notes.append("replay")
        if self.body is not None:
            self.body()


@contextmanager
def noted_cuda() -> Iterator[NotedCuda]:
    """Work is on stream A until it is put elsewhere."""
    cuda = NotedCuda()
    current = [cuda.new_stream()]

    @contextmanager
    def on(stream: NotedStream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    with pytest.MonkeyPatch.context() as patch:
        for name, fake in {
            "Stream": cuda.new_stream,
            "Event": lambda: _Event(cuda),
            "CUDAGraph": lambda: _Graph(cuda),
            "graph_pool_handle": object,
            "current_stream": lambda device=None: current[-1],
            "empty_cache": lambda: cuda.notes.append("cache emptied"),
            "stream": on,
        }.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(cuda_graphs, "_idle_streams", {})
        yield cuda


class ReplayableGeneration(FastGeneration):
    """Its search, once recorded, runs again into the tensors that it returned then."""

    cuda: NotedCuda

    def search(
        self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile
    ) -> FoundNodes:
        def searched() -> FoundNodes:
            return FastGeneration.search(self, features, slot, profile)

        found = searched()

        @torch.inference_mode()
        def again() -> None:
            new = searched()
            found.nodes.copy_(new.nodes)
            found.scores.copy_(new.scores)
            found.corrupt.copy_(new.corrupt)

        if self.cuda.recording is not None:
            self.cuda.recording.body = again
        return found
