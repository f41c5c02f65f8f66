"""The product's whole decode loop as one call, as the server replays it."""

from collections.abc import Callable

import torch

from bench.gpu.replay import Replay
from bench.gpu.subject import Engine
from configs.generation import BeamProfile
from kernels import AdmissionSlot
from model.fast_search import FoundNodes, fast_search
from model.inputs import UserContext

__all__ = ["decoder_call"]


def decoder_call(
    engine: Engine,
    context: UserContext,
    slot: AdmissionSlot,
    profile: BeamProfile,
    device: torch.device,
) -> Callable[[], FoundNodes]:
    """Cross-attention's keys and values, every step, admission, selection, rearrangement.

    On a GPU it is captured.
    """

    def search() -> FoundNodes:
        return fast_search(engine.weights, engine.memo, context, slot, profile, engine.ops)

    return Replay(search, device)
