"""The loop of the fast searches: the function of `grace.model.definition.beam_search`.

A decoder of any family computes the steps in its own layout. Shapes follow from batch size and beam
profile, and only the slot knows users and snapshot. So a CUDA graph of the loop serves any batch.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Beams, Ops
from grace.kernels.decode.select_beams import Choice
from grace.model.definition.beam_search import root_beams

Prefixes = TypeVar("Prefixes")


class StepLogits(NamedTuple):
    """The logits of a step's rows, as `Choice` has them."""

    logits: Tensor
    row_scale: Tensor
    log_sums: Tensor | None = None


class FastDecoder(Protocol[Prefixes]):
    """The state of one batch's search."""

    def first(self, root: Beams) -> Prefixes:
        """Return the prefixes that enter step 0, one for each request."""

    def step(self, step: int, prefixes: Prefixes, rows: slice) -> StepLogits:
        """Compute a step, whose beam rows are `rows` of the rows of all steps."""

    def continued(self, step: int, prefixes: Prefixes, beams: Beams) -> Prefixes:
        """Return the prefixes of the step's beams."""


def search(
    decoder: FastDecoder[Prefixes],
    batch: int,
    slot: AdmissionSlot,
    profile: BeamProfile,
    ops: Ops,
    device: torch.device,
) -> Beams:
    """Return the last step's beams; their `corrupt` covers the whole search. It returns nodes:
    only a snapshot knows its leaves."""
    beams = root_beams(batch, device)
    prefixes = decoder.first(beams)
    corrupt = beams.corrupt
    first_row = 0
    for step, width in enumerate(profile.beams):
        rows = slice(first_row, first_row + batch * width)
        first_row = rows.stop
        last = step + 1 == len(profile.beams)
        logits = decoder.step(step, prefixes, rows)
        candidates = slot.admit_children(beams.nodes)
        kept = profile.kept_after(step)
        beams = ops.select_beams(
            Choice(
                logits.logits,
                beams.scores,
                candidates,
                kept,
                ordered=last,
                row_scale=logits.row_scale,
                log_sums=logits.log_sums,
            )
        )
        corrupt = corrupt | beams.corrupt
        if not last:
            prefixes = decoder.continued(step, prefixes, beams)
    return replace(beams, corrupt=corrupt)
