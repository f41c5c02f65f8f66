"""The beam search of every way to decode, over known scores, and the best search there could be."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from grace.bench.eligibility.path_scores import BEAMS, NUM_SIDS
from grace.index.trie import NO_NODE
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.decode.admit_children import AdmitChildren


@dataclass(frozen=True, slots=True)
class Found:
    """What B searches kept.

    nodes   int32 [B, beams] after each step, NO_NODE for dead beams; at last the SIDs, best first
    scores  float32 [B, SIDs]   of the last nodes
    """

    nodes: tuple[Tensor, ...]
    scores: Tensor


def search(
    path_scores: Tensor, users: UserTensors, index: DecodeIndex, admit_children: AdmitChildren
) -> Found:
    """Keep the best admitted children of every step.   path_scores float32 [B, nodes]"""
    nodes = torch.zeros(len(path_scores), 1, dtype=torch.int32, device=path_scores.device)
    steps, scores = [], path_scores[:, :1]
    for keep in (*BEAMS[1:], NUM_SIDS):
        candidates = admit_children(nodes, users, index).packed()
        borders = candidates.offsets[:: nodes.shape[1]].tolist()  # a request has that many rows
        children = [candidates.nodes[begin:end] for begin, end in pairwise(borders)]
        nodes, scores = _best(children, path_scores, keep)
        steps.append(nodes)
    return Found(tuple(steps), scores)


def best_possible(path_scores: Tensor, eligible: Tensor, first_leaf: int) -> Found:
    """Return the best SIDs of all that lead to an eligible ad: beams without limit.

    eligible  bool [B, nodes]   `eligible_at` of each request
    """
    leaves = [(own[first_leaf:].nonzero()[:, 0] + first_leaf).int() for own in eligible]
    nodes, scores = _best(leaves, path_scores, NUM_SIDS)
    return Found((nodes,), scores)


def leads_to_ads(nodes: Tensor, eligible: Tensor) -> Tensor:
    """Return whether each beam is alive and has an eligible ad below.   [B, M] -> bool [B, M]"""
    return eligible.gather(1, nodes.clamp(min=0).long()) & (nodes != NO_NODE)


def _best(children: list[Tensor], path_scores: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Return the best `keep` children of each request and their scores, padded with NO_NODE."""
    nodes = children[0].new_full((len(children), keep), NO_NODE)
    scores = path_scores.new_full(nodes.shape, -torch.inf)
    for request, own in enumerate(children):
        best = path_scores[request, own.long()].topk(min(keep, len(own)))
        nodes[request, : len(best.indices)] = own[best.indices]
        scores[request, : len(best.indices)] = best.values
    return nodes, scores
