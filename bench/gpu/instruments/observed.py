"""Watch the selections of a search, also without the libraries of a GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from grace.kernels import Beams, Candidates, Ops


class Selection(NamedTuple):
    """The arguments of one selection, named as in Ops."""

    logits: Tensor
    scores: Tensor
    candidates: Candidates
    k: int
    ordered: bool
    row_scale: Tensor | None = None

    def copied(self) -> "Selection":
        """Return a copy, since the next step of the search may overwrite the memory."""
        old = self.candidates
        counts = None if old.counts is None else old.counts.clone()
        candidates = Candidates(old.offsets.clone(), old.tokens.clone(), old.nodes.clone(), counts)
        return self._replace(
            logits=self.logits.clone(),
            scores=self.scores.clone(),
            candidates=candidates,
            row_scale=None if self.row_scale is None else self.row_scale.clone(),
        )


def observed(ops: Ops, observe: Callable[[Selection, Beams], None]) -> Ops:
    """Return the operations; each selection also calls `observe` with itself and its beams."""

    def select_beams(*arguments: Any, **named: Any) -> Beams:
        beams = ops.select_beams(*arguments, **named)
        observe(Selection(*arguments, **named), beams)
        return beams

    return replace(ops, select_beams=select_beams)
