"""Trace a search: how far the prefixes of one SID came, and what they competed with.

Every search, plain or fast, ranks its candidates through `Ops.select_beams`. So one function around
that operation traces it, and the search computes the same as without a trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import Beams, Candidates, Ops
from grace.kernels.decode.ops import SelectBeams
from grace.kernels.decode.select_beams import Choice, candidate_totals


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step of a request's search, seen from the prefix that a SID has there."""

    candidates: int  # prefixes that were admitted, of all beams
    beams: int  # how many of them the step kept
    lowest_score: float | None  # the lowest kept score; None if there is no beam
    score: float | None  # the prefix's score; None if it was not admitted
    rank: int  # its place among the candidates, from 1; 0 if it was not admitted
    kept: bool  # the prefix is a beam after the step

    @property
    def admitted(self) -> bool:
        return self.score is not None


class SearchTrace:
    """The steps of a batch's first request, up to the one that did not keep the prefix.

    `path` has the node that each step must reach, from level 1 to a leaf.
    """

    def __init__(self, path: Sequence[int]) -> None:
        self._path = path
        self.steps: list[TracedStep] = []

    def of(self, ops: Ops) -> Ops:
        """Return the same operations, with a selection that notes what it selects from.

        On a GPU, each step of the search then waits for the device.
        """
        return replace(ops, select_beams=partial(self._select_beams, ops.select_beams))

    def _select_beams(self, select_beams: SelectBeams, given: Choice) -> Beams:
        kept = select_beams(given)
        if not self.steps or self.steps[-1].kept:
            node = self._path[len(self.steps)]
            packed, rows = given.candidates.packed(), given.scores.shape[1]
            end = int(packed.offsets[rows])  # where the first request ends
            tokens, nodes = packed.tokens[:end], packed.nodes[:end]
            first = Candidates(packed.offsets[: rows + 1], tokens, nodes)
            _, totals = candidate_totals(given, first)
            self.steps.append(_step(node, nodes, totals, kept.nodes[0], kept.scores[0]))
        return kept


def _step(
    node: int, nodes: Tensor, totals: Tensor, kept_nodes: Tensor, kept_scores: Tensor
) -> TracedStep:
    live = kept_scores[kept_nodes != NO_NODE]
    place = (nodes == node).nonzero().flatten()
    kept = kept_scores[kept_nodes == node]
    score, rank = None, 0
    if len(place):
        own = totals[place]
        better = (totals > own).sum() + (totals[: int(place)] == own).sum()
        rank = int(better) + 1
        score = float(kept if len(kept) else own)  # the engine's number, if it kept the prefix
    return TracedStep(
        candidates=len(nodes),
        beams=len(live),
        lowest_score=float(live.min()) if len(live) else None,
        score=score,
        rank=rank,
        kept=len(kept) > 0,
    )
