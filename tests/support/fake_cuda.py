"""A fake of torch's CUDA streams, events and graphs, to test a GPU's order of work without one.

Work runs at once, and the fake notes what it was asked for. A graph's replay runs its search again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Beams
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.generation import FastGeneration


@dataclass
class FakeCuda:
    notes: list[str] = field(default_factory=list)
    streams: list["_Stream"] = field(default_factory=list)
    recording: "_Graph | None" = None

    def new_stream(self, device: torch.device | None = None) -> "_Stream":
        name = chr(ord("A") + len(self.streams))
        self.streams.append(_Stream(self, name, device or torch.device("cpu")))
        return self.streams[-1]

    def take_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes = self.notes[:]
        self.notes.clear()
        return notes


@dataclass(eq=False)
class _Stream:
    cuda: FakeCuda
    name: str
    device: torch.device

    def wait_stream(self, other: "_Stream") -> None:
        self.cuda.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "_Event") -> None:
        self.cuda.notes.append(f"{self.name} waits for the work of {event.stream}")

    def synchronize(self) -> None:
        self.cuda.notes.append(f"the host waits for {self.name}")


@dataclass
class _Event:
    cuda: FakeCuda
    stream: str = "no stream"

    def record(self, stream: _Stream) -> None:
        self.stream = stream.name
        self.cuda.notes.append(f"event on {stream.name}")


@dataclass(eq=False)
class _Graph:
    cuda: FakeCuda
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
def fake_cuda() -> Iterator[FakeCuda]:
    """Replace torch's CUDA; work is on stream A unless the test chooses another."""
    cuda = FakeCuda()
    current = [cuda.new_stream()]

    @contextmanager
    def on(stream: _Stream) -> Iterator[None]:
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
        patch.setattr(GraphMemory, "idle_streams", {})
        yield cuda


class ReplayableGeneration(FastGeneration):
    """A search that, once recorded, writes each replay's results into the recorded tensors."""

    cuda: FakeCuda

    def search(self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile) -> Beams:
        found = super().search(features, slot, profile)

        @torch.inference_mode()
        def again() -> None:
            new = FastGeneration.search(self, features, slot, profile)
            for name in ("nodes", "scores", "corrupt"):
                getattr(found, name).copy_(getattr(new, name))

        if self.cuda.recording is not None:
            self.cuda.recording.body = again
        return found
