"""What searches find, compared: no search is timed that does not find what the plain one does."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.bench.gpu.agreement import require_close, require_overlap
from grace.bench.gpu.subject import Engine
from grace.bench.rungs.dense_search import dense_search
from grace.bench.rungs.every_token import EveryToken
from grace.bench.rungs.ladder import L1
from grace.bench.rungs.weights import RungWeights
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, AdmissionSlot, Beams, Candidates, DecodeIndex, UserTensors
from grace.model.definition.beam_search import beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.engine.decode_loop import fast_search
from grace.model.engine.decode_weights import PRECISIONS, Precision

__all__ = [
    "LEAST_OVERLAP",
    "Found",
    "TracedFound",
    "check_found",
    "free_slot",
    "nodes_of_sids",
    "overlap",
    "plain_found",
    "plain_found_freely",
    "traced_search",
]

LEAST_OVERLAP: dict[Precision, float] = {"fp32": 0.97, "fp16": 0.8, "bf16": 0.7}
"""Of the SIDs with float32's: what rounding may exchange among near-ties at the end of the list."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came out, in the device's memory.

    nodes  int32 [B, num_sids]; without constraints int64, those of the trie of every SID, breadth
           first; dead ones NO_NODE
    """

    nodes: Tensor
    scores: Tensor
    corrupt: Tensor


@dataclass(frozen=True, slots=True)
class TracedFound:
    """As the engine leaves it; `places` are the nodes of the beams after each step.

    Without constraints the engine's nodes are places among a step's candidates (EveryToken): a
    place tells parent and token, all of them together tell the SID. Keeping them costs nothing.
    """

    found: Found
    places: tuple[Tensor, ...]

    def numbered(self, vocabulary: int) -> Found:
        """Of a search without constraints."""
        numbers = torch.zeros(len(self.places[0]), dtype=torch.int64, device=self.places[0].device)
        for places in self.places:
            live = places.clamp(min=0).flatten().long()
            parents, tokens = live // vocabulary, live % vocabulary
            numbers = numbers[parents] * vocabulary + tokens + 1
        nodes = numbers.view(self.found.nodes.shape)
        dead = self.found.scores == -torch.inf
        return Found(nodes.masked_fill(dead, NO_NODE), self.found.scores, self.found.corrupt)


def traced_search(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> TracedFound:
    """The engine's search, which may be captured."""
    places: list[Tensor] = []

    def select(
        logits: Tensor, scores: Tensor, candidates: Candidates, k: int, ordered: bool,
        row_scale: Tensor | None = None,
    ) -> Beams:  # fmt: skip
        beams = engine.ops.select_beams(logits, scores, candidates, k, ordered, row_scale)
        places.append(beams.nodes)
        return beams

    ops = replace(engine.ops, select_beams=select)
    found = fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    return TracedFound(Found(found.nodes, found.scores, found.corrupt), tuple(places))


def free_slot(engine: Engine) -> EveryToken:
    return EveryToken(max(engine.weights.vocab_sizes))


def plain_found(
    decoder: Decoder, context: UserContext, users: UserTensors, index: DecodeIndex,
    profile: BeamProfile,
) -> Found:  # fmt: skip
    """By definition, in float32."""
    whole = UserContext(context.states.float(), context.mask)
    generated = beam_search(decoder, whole, users, index, profile, REFERENCE)
    dead = generated.leaves == NO_NODE
    nodes = (generated.leaves + index.first_leaf).masked_fill(dead, NO_NODE)
    return Found(nodes, generated.scores, generated.corrupt)


def plain_found_freely(decoder: Decoder, context: UserContext, profile: BeamProfile) -> Found:
    """Without constraints: L1 in float32, which is the plain loop over a catalogue of every SID."""
    weights = RungWeights.of(decoder, context.states.device, torch.float32)
    found = dense_search(weights, context.states.float(), profile, L1)
    return nodes_of_sids(found.sids, found.scores, max(weights.vocab_sizes))


def nodes_of_sids(sids: Tensor, scores: Tensor, vocabulary: int) -> Found:
    """sids int32 [B, num_sids, L]"""
    nodes = torch.zeros(sids.shape[:2], dtype=torch.int64, device=sids.device)
    for position in range(sids.shape[2]):
        nodes = nodes * vocabulary + sids[:, :, position] + 1
    dead = scores == -torch.inf
    corrupt = torch.zeros(len(sids), dtype=torch.bool, device=sids.device)
    return Found(nodes.masked_fill(dead, NO_NODE), scores, corrupt)


def check_found(what: str, got: Found, expected: Found, precision: Precision) -> float:
    """How many of the SIDs are those of float32; raises where it is not the same function.

    The scores of those that are must be close. Which others are exchanged, near-ties tell.
    """
    share = overlap(got, expected)
    require_overlap(f"{what} in {precision}", share, LEAST_OVERLAP[precision])
    scores, defined = _scores_of_common(got, expected)
    if len(scores):
        require_close(f"{what} in {precision}, scores", scores.to(PRECISIONS[precision]), defined)
    return share


def _scores_of_common(got: Found, expected: Found) -> tuple[Tensor, Tensor]:
    """Of all SIDs that both have.   [n], [n]"""
    found, defined = [], []
    for one, own, other, wanted in zip(
        got.nodes, got.scores, expected.nodes, expected.scores, strict=True
    ):
        common = torch.isin(other, one) & (other != NO_NODE)
        nodes, order = one.sort()
        at = torch.searchsorted(nodes, other[common])
        found.append(own[order[at]].float())
        defined.append(wanted[common].float())
    return torch.cat(found), torch.cat(defined)


def overlap(got: Found, expected: Found) -> float:
    """The share of the expected live SIDs that were found, over all requests; 1 if none is."""
    common = total = 0
    for one, other in zip(got.nodes, expected.nodes, strict=True):
        wanted = other[other != NO_NODE]
        common += int(torch.isin(wanted, one).sum())
        total += len(wanted)
    return common / total if total else 1.0
