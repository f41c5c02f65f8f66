"""A fake of torch's CUDA streams, events and graphs, to run recorded generation without a GPU.

Work runs at once, on the CPU. Replaying a graph runs its search again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Beams
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.generation import FastGeneration


@dataclass
class FakeCuda:
    recording: "_Graph | None" = None


@dataclass(eq=False)
class _Graph:
    cuda: FakeCuda
    replay: Callable[[], object] = lambda: None

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:  # noqa: ARG002
        assert capture_error_mode == "thread_local"
        self.cuda.recording = self

    def capture_end(self) -> None:
        self.cuda.recording = None


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Replace torch's CUDA streams, events and graphs by the fake ones."""
    cuda = FakeCuda()
    current = Mock()
    fakes: dict[str, Callable[..., Any]] = {
        "Stream": lambda device: Mock(device=device),
        "Event": Mock,
        "CUDAGraph": lambda: _Graph(cuda),
        "graph_pool_handle": object,
        "current_stream": lambda device=None: current,
        "empty_cache": lambda: None,
        "stream": lambda stream: nullcontext(),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in fakes.items():
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
            self.cuda.recording.replay = again
        return found
