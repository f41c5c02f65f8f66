"""Constrained decoding as STATIC does it, in plain torch, from its published description.

"Vectorizing the Trie: Efficient Constrained Decoding for LLM-based Generative Retrieval on
Accelerators", arXiv 2602.22647. A dense mask over tokens decides the first two steps. Below them
every beam reads a slice of its node's CSR row, as long as the level's largest fan-out, and discards
what is beyond the row; tokens and next nodes are scattered into a row over the vocabulary. Shapes
do not depend on the data, so it runs on accelerators without waiting. Its price is the padding to
the largest fan-out and a [rows, V] mask. It knows which SIDs exist, but no user. `static_step` is
the mask, `static_beams` the step around it with torch's top k.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grace.kernels import DecodeIndex
from grace.kernels.decode.select_beams import Choice

_DENSE_LEVELS = 2


@dataclass(frozen=True, slots=True)
class StaticIndex:
    first: Tensor  # bool [V]: tokens that begin a SID
    first_nodes: Tensor  # int32 [V]: the nodes they lead to
    pairs: Tensor  # bool [V, V]: first two tokens of a SID
    pair_nodes: Tensor  # int32 [V, V]: the nodes they lead to
    node_offsets: Tensor
    csr_tokens: Tensor
    widest: tuple[int, ...]  # largest fan-out of each level

    @property
    def vocabulary(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class StaticStep:
    """
    choice  the engine's step, whose candidates STATIC does not read
    tokens  int64 [B * M]   the beams' last tokens
    nodes   int32 [B * M]   the beams' nodes
    """

    choice: Choice
    tokens: Tensor
    nodes: Tensor


class KeptBeams(NamedTuple):
    """[B, k] each; beams of score -inf mean nothing. `parents` are flat rows."""

    parents: Tensor
    tokens: Tensor
    nodes: Tensor
    scores: Tensor


def static_index(index: DecodeIndex) -> StaticIndex:
    """Return the index of a trie of at least two levels with equal vocabularies."""
    vocabulary = max(index.vocab_sizes)
    offsets, tokens = index.node_offsets.long(), index.csr_tokens
    roots = int(offsets[1])
    first = torch.zeros(vocabulary, dtype=torch.bool, device=tokens.device)
    first_nodes = torch.zeros_like(first, dtype=torch.int32)
    heads = tokens[:roots].long()
    first[heads] = True
    first_nodes[heads] = torch.arange(1, roots + 1, dtype=torch.int32, device=tokens.device)
    second = torch.arange(roots, int(offsets[roots + 1]), device=tokens.device)
    counts = offsets[2 : roots + 2] - offsets[1 : roots + 1]
    owners, values = heads.repeat_interleave(counts), tokens[second].long()
    pairs = torch.zeros((vocabulary, vocabulary), dtype=torch.bool, device=tokens.device)
    pair_nodes = torch.zeros_like(pairs, dtype=torch.int32)
    pairs[owners, values] = True
    pair_nodes[owners, values] = (second + 1).int()
    return StaticIndex(
        first, first_nodes, pairs, pair_nodes, index.node_offsets, tokens, _widest(index)
    )


def static_step(
    index: StaticIndex, step: int, log_probabilities: Tensor, tokens: Tensor, nodes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities, -inf where a token continues no SID, and the nodes of the tokens.

    log_probabilities float32 [rows, V], tokens int64 [rows] (the last ones), nodes int32 [rows]
    -> float32 [rows, V], int32 [rows, V]
    """
    if step == 0:
        masked = log_probabilities.masked_fill(~index.first, -torch.inf)
        return masked, index.first_nodes.expand(len(masked), -1)
    if step < _DENSE_LEVELS:
        masked = log_probabilities.masked_fill(~index.pairs[tokens], -torch.inf)
        return masked, index.pair_nodes[tokens]
    begin = index.node_offsets[nodes.long()]
    count = index.node_offsets[nodes.long() + 1] - begin
    places = torch.arange(index.widest[step], device=nodes.device)
    there = places < count[:, None]
    entries = (begin[:, None] + places).clamp(max=len(index.csr_tokens) - 1).long()
    # Entries beyond a row go to an extra column, which is cut off.
    columns = torch.where(there, index.csr_tokens[entries].long(), index.vocabulary)
    wide = log_probabilities.new_full((len(nodes), index.vocabulary + 1), -torch.inf)
    own = log_probabilities.gather(1, columns.clamp(max=index.vocabulary - 1))
    wide.scatter_(1, columns, torch.where(there, own, -torch.inf))
    onward = torch.zeros_like(wide, dtype=torch.int32)
    onward.scatter_(1, columns, (entries + 1).int())
    return wide[:, : index.vocabulary], onward[:, : index.vocabulary]


def static_beams(index: StaticIndex, step: int, given: StaticStep) -> KeptBeams:
    """Return the k best continuations of each request: the whole step, from logits."""
    choice = given.choice
    requests, beams = choice.scores.shape
    logits = choice.logits.float()
    if choice.row_scale is not None:
        logits = logits * choice.row_scale[:, None]
    log_probabilities = logits.log_softmax(dim=-1)[:, : index.vocabulary]
    masked, onward = static_step(index, step, log_probabilities, given.tokens, given.nodes)
    totals = (masked + choice.scores.reshape(-1, 1)).view(requests, -1)
    scores, places = totals.topk(min(choice.k, totals.shape[1]), dim=1, sorted=choice.ordered)
    nodes = onward.reshape(requests, -1).gather(1, places)
    first_rows = torch.arange(requests, device=places.device)[:, None] * beams
    return KeptBeams(
        places // index.vocabulary + first_rows, places % index.vocabulary, nodes, scores
    )


def _widest(index: DecodeIndex) -> tuple[int, ...]:
    offsets = index.node_offsets.long()
    widest, begin, end = [], 0, 1
    for _ in index.vocab_sizes:
        widest.append(int((offsets[begin + 1 : end + 1] - offsets[begin:end]).max()))
        begin, end = int(offsets[begin]) + 1, int(offsets[end]) + 1
    return tuple(widest)
