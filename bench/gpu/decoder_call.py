"""The product's whole decode loop as one recorded call, as the server replays it."""

from collections.abc import Sequence

import torch

from grace.bench.gpu.found import Found, TracedFound, check_found, traced_search
from grace.bench.gpu.replay import Replay
from grace.bench.gpu.rotation import DecoderBatch, Rotation
from grace.bench.gpu.subject import Engine
from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, DecodeIndex
from grace.model.engine.decode_weights import Precision

__all__ = ["DecoderCall"]


class DecoderCall:
    """Cross-attention's keys and values, every step, admission, selection, rearrangement.

    Call it to run it; `rotation` puts the next batch in its place before. On a GPU it is captured.
    Where the index is None nothing constrains it, and `slot` is an EveryToken.
    """

    def __init__(
        self,
        engine: Engine,
        batches: Sequence[DecoderBatch],
        slot: AdmissionSlot,
        index: DecodeIndex | None,
        profile: BeamProfile,
    ) -> None:
        def search() -> TracedFound:
            return traced_search(engine, self.rotation.context, slot, profile)

        self._vocabulary = None if index is not None else max(engine.weights.vocab_sizes)
        self.rotation = Rotation(
            batches,
            engine.weights.dtype,
            lambda users: None if index is None else slot.point_at(users, index),
        )
        self._replay = Replay(search, engine.weights.device)

    def __call__(self) -> TracedFound:
        return self._replay()

    @torch.inference_mode()
    def check(self, what: str, expected: Sequence[Found], precision: Precision) -> None:
        """What it finds for the first batches is what the plain loop does, or this raises."""
        for number, wanted in enumerate(expected):
            self.rotation.put(number)
            traced = self()
            got = traced.found
            if self._vocabulary is not None:
                got = traced.numbered(self._vocabulary)
            check_found(f"{what}, batch {number}", got, wanted, precision)
        self.rotation.put(0)
