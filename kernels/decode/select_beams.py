"""Selection: the best candidates of each request become its beams of the next step."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels.checks import require_optional, require_tensor
from grace.kernels.decode.tensors import Beams, Candidates


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates of a step, of which each request keeps k, `ordered` or as they come."""

    logits: Tensor  # [B * M, C]: the step's tokens, then columns that only enter the normaliser
    scores: Tensor  # float32 [B, M] of the beams
    candidates: Candidates
    k: int
    ordered: bool
    # float32 [B * M], multiplies the row's logits: an RMS factor not yet applied
    row_scale: Tensor | None = None
    # float32 [B * M]: a row's log of the sum of exp(scaled logits); None: that of the columns
    log_sums: Tensor | None = None

    def check(self) -> tuple[int, int]:
        scores, found = self.scores, self.candidates
        if scores.dim() != 2 or scores.shape[1] == 0:
            raise ValueError(f"scores must be [requests, beams >= 1], got {list(scores.shape)}")
        requests, beams = scores.shape
        rows, count = requests * beams, len(found.tokens)
        require_tensor("scores", scores, torch.float32, requests=requests, beams=beams)
        require_tensor("logits", self.logits, rows=rows, columns=self.logits.shape[-1])
        require_tensor("candidates.offsets", found.offsets, torch.int32, borders=rows + 1)
        require_tensor("candidates.tokens", found.tokens, torch.int32, candidates=count)
        require_tensor("candidates.nodes", found.nodes, torch.int32, candidates=count)
        require_optional("candidates.counts", found.counts, torch.int32, rows=rows)
        require_optional("row_scale", self.row_scale, torch.float32, rows=rows)
        require_optional("log_sums", self.log_sums, torch.float32, rows=rows)
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        return requests, beams


def select_beams_reference(given: Choice) -> Beams:
    """Keep each request's k best candidates by the beam's score + the token's log-probability.

    -> [B, k], all sums in float32

    Ties go to the lower candidate: lower beam row, then lower token. The beams keep the candidates'
    order; if `ordered`, they are sorted by score, descending, and ties keep that order. A request
    with fewer than k candidates gets dead beams at the end: score -inf, node NO_NODE, token 0, and
    the request's first row as parent.

    A candidate of probability zero (score -inf) is never kept. A request with a candidate whose
    score is NaN or +inf is corrupt: all its beams are dead, and other requests are not affected.
    One NaN or +inf among a row's logits makes the whole row NaN; the logits of a row without
    candidates may be anything.
    """
    requests, beams = given.check()
    candidates, k, columns = given.candidates.packed(), given.k, given.logits.shape[1]
    used = candidates.tokens
    if len(used) and int(used.max()) >= columns:
        raise ValueError(
            f"candidates.tokens reach {int(used.max())}, logits have {columns} columns only"
        )
    rows, totals = candidate_totals(given, candidates)
    not_finite = totals.isnan() | totals.isposinf()
    first_rows = torch.arange(requests, dtype=torch.int32, device=given.scores.device) * beams
    parents = first_rows.unsqueeze(1).repeat(1, k)
    selected = Beams(
        parents=parents,
        tokens=torch.zeros_like(parents),
        nodes=torch.full_like(parents, NO_NODE),
        scores=given.scores.new_full((requests, k), -torch.inf),
        corrupt=given.scores.new_zeros(requests, dtype=torch.bool),
    )
    borders = candidates.offsets[::beams].tolist()
    for request, (begin, end) in enumerate(pairwise(borders)):
        if not_finite[begin:end].any():
            selected.corrupt[request] = True
            continue
        kept = begin + _best(totals[begin:end], k, given.ordered)
        selected.parents[request, : len(kept)] = rows[kept].int()
        selected.tokens[request, : len(kept)] = candidates.tokens[kept]
        selected.nodes[request, : len(kept)] = candidates.nodes[kept]
        selected.scores[request, : len(kept)] = totals[kept]
    return selected


def candidate_totals(given: Choice, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Return the beam row of each packed candidate, and its score.   2 x [n]

    The candidates are those of the first rows of `given`, or of all.
    """
    count = len(candidates.offsets) - 1
    rows = torch.arange(count, device=given.logits.device)
    rows = rows.repeat_interleave(candidates.offsets.diff())
    scaled = given.logits[:count].float()
    if given.row_scale is not None:
        scaled = scaled * given.row_scale[:count].unsqueeze(1)
    if given.log_sums is None:
        log_probabilities = torch.log_softmax(scaled, dim=-1)
    else:
        log_probabilities = scaled - given.log_sums[:count].unsqueeze(1)
    own = given.scores.flatten()[rows]
    return rows, log_probabilities[rows, candidates.tokens.long()] + own


def _best(totals: Tensor, k: int, ordered: bool) -> Tensor:
    """Return the places of the k highest; ties go to the lower place.   [n] -> [at most k]"""
    places = totals.sort(descending=True, stable=True).indices[:k]
    places = places[totals[places] > -torch.inf]
    return places if ordered else places.sort().values
