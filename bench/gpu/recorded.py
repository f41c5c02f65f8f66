"""What each step of a real generation asks of admission and selection, to be asked again alone."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.bench.gpu.subject import Engine
from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Beams, Candidates, DecodeIndex, UserTensors
from grace.model.definition.inputs import UserContext
from grace.model.engine.decode_loop import fast_search

__all__ = ["RecordedStep", "record"]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The arguments of one step's admission (`nodes` int32 [B, M]) and of its selection."""

    nodes: Tensor
    logits: Tensor
    scores: Tensor
    candidates: Candidates
    kept: int
    ordered: bool
    row_scale: Tensor | None


class _RecordingSlot:
    def __init__(self, slot: AdmissionSlot) -> None:
        self._slot = slot
        self.nodes: list[Tensor] = []

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        self._slot.point_at(users, index)

    def admit_children(self, nodes: Tensor) -> Candidates:
        self.nodes.append(nodes.clone())
        return self._slot.admit_children(nodes)


@torch.inference_mode()
def record(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> list[RecordedStep]:
    """One generation, launched operation by operation. The slot points at users and index."""
    recording = _RecordingSlot(slot)
    steps: list[RecordedStep] = []

    def select(
        logits: Tensor,
        scores: Tensor,
        candidates: Candidates,
        k: int,
        ordered: bool,
        row_scale: Tensor | None = None,
    ) -> Beams:
        kept = _copied(candidates)
        factors = None if row_scale is None else row_scale.clone()
        step = RecordedStep(
            recording.nodes[-1], logits.clone(), scores.clone(), kept, k, ordered, factors
        )
        steps.append(step)
        return engine.ops.select_beams(logits, scores, candidates, k, ordered, row_scale)

    ops = replace(engine.ops, select_beams=select)
    fast_search(engine.weights, engine.memo, context, recording, profile, ops)
    return steps


def _copied(candidates: Candidates) -> Candidates:
    """A slot may use the same memory again in the next step."""
    counts = candidates.counts
    return Candidates(
        candidates.offsets.clone(),
        candidates.tokens.clone(),
        candidates.nodes.clone(),
        None if counts is None else counts.clone(),
    )
