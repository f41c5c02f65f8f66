"""Each rung of the ladder as a search over a user context, and what it should have found.

The rungs without constraints are compared with L1 in float32, which is the plain loop over a
catalogue of every SID; the others with the plain loop itself, on the same users and catalogue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.gpu.attention_inputs import distinct_table, self_inputs
from bench.gpu.attention_variants import best_tile
from bench.gpu.gtm import bitmask_only
from bench.gpu.subject import Engine, Subject
from bench.rungs.coalesced_triton import DEFAULT_TILE, Tile
from bench.rungs.dense_search import (
    PLAIN,
    Pieces,
    Rung,
    compiled_pieces,
    dense_search,
)
from bench.rungs.every_token import EveryToken
from bench.rungs.ladder import DENSE_RUNGS, L1, L2, L3, tiled
from bench.rungs.weights import RungWeights
from configs.generation import BeamProfile
from index.trie import NO_NODE
from kernels import REFERENCE, AdmissionSlot, DecodeIndex, UserTensors, admission_slot
from model.beam_search import beam_search
from model.fast_search import fast_search
from model.inputs import UserContext

__all__ = ["RUNGS", "Found", "RungRun", "definition_of", "expected_of", "run_of"]

RUNGS = (*(rung.name for rung in DENSE_RUNGS), "L4", "D0", "D1", "D2", "D3")

_FREE = (*(rung.name for rung in DENSE_RUNGS), "L4", "D0")
_POSITIVE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Found:
    """What came out, in the device's memory.

    nodes  int32 [B, num_sids]; without constraints numbered as EveryToken does; dead ones NO_NODE
    """

    nodes: Tensor
    scores: Tensor
    corrupt: Tensor


@dataclass(frozen=True, slots=True)
class RungRun:
    """
    search           what is captured
    numbered_search  the same with nodes that tell which SID it is; only then do they without
                     constraints, where the engine itself has no use for them
    point_at         tells it a batch's users, before it is replayed
    looks_up         whether SIDs are of the catalogue, so that ads follow from them
    """

    name: str
    profile: BeamProfile
    search: Callable[[UserContext], Found]
    numbered_search: Callable[[UserContext], Found]
    point_at: Callable[[UserTensors], None]
    looks_up: bool


def run_of(name: str, subject: Subject, engine: Engine, index: DecodeIndex) -> RungRun:
    """`index` is in mode `union`."""
    dense = {rung.name: rung for rung in DENSE_RUNGS}
    if name in dense:
        return _dense_run(dense[name], subject, engine)
    profile = subject.fixed if name == "L4" else subject.dynamic
    looks_up = name not in _FREE
    slot: AdmissionSlot = admission_slot(engine.ops)
    numbered = slot
    if not looks_up:
        vocabulary = max(subject.spec.vocab_sizes)
        slot, numbered = EveryToken(vocabulary), EveryToken(vocabulary, numbered=True)

    def searching(slot: AdmissionSlot) -> Callable[[UserContext], Found]:
        def search(context: UserContext) -> Found:
            found = fast_search(engine.weights, engine.memo, context, slot, profile, engine.ops)
            return Found(found.nodes, found.scores, found.corrupt)

        return search

    def point_at(users: UserTensors) -> None:
        slot.point_at(*_matched(name, users, index))

    return RungRun(name, profile, searching(slot), searching(numbered), point_at, looks_up)


def definition_of(name: str) -> str:
    """Equal for rungs that must find the same."""
    if name in _FREE:
        return "free, fixed beams" if name.startswith("L") else "free, dynamic beams"
    return name


def expected_of(
    name: str, subject: Subject, engine: Engine, index: DecodeIndex, users: UserTensors,
    states: Tensor,
) -> Found:  # fmt: skip
    """In float32, by definition."""
    context = UserContext(
        states.float(), torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    )
    fixed = name.startswith("L")
    profile = subject.fixed if fixed else subject.dynamic
    if name in _FREE:
        weights = RungWeights.of(engine.plain.decoder, states.device, torch.float32)
        found = dense_search(weights, context.states, profile, L1)
        return _found(found.sids, found.scores, subject)
    own, mode = _matched(name, users, index)
    generated = beam_search(engine.plain.decoder, context, own, mode, profile, REFERENCE)
    dead = generated.leaves == NO_NODE
    nodes = (generated.leaves + index.first_leaf).masked_fill(dead, NO_NODE)
    return Found(nodes, generated.scores, generated.corrupt)


def _dense_run(rung: Rung, subject: Subject, engine: Engine) -> RungRun:
    weights = engine.weights
    own = RungWeights.of(engine.plain.decoder, weights.device, weights.dtype)
    on_gpu = weights.device.type == "cuda"
    pieces: Pieces = compiled_pieces() if on_gpu else PLAIN
    if on_gpu and rung.name in (L2.name, L3.name):
        rung = tiled(rung, _tiles(subject, weights.dtype, weights.device, rung.name == L3.name))
    elif rung.name in (L2.name, L3.name):
        rung = replace(L1, name=rung.name)

    def search(context: UserContext) -> Found:
        found = dense_search(own, context.states, subject.fixed, rung, pieces)
        return _found(found.sids, found.scores, subject)

    return RungRun(rung.name, subject.fixed, search, search, lambda users: None, looks_up=False)


def _tiles(
    subject: Subject, dtype: torch.dtype, device: torch.device, fused: bool
) -> Sequence[Tile]:
    rows = subject.batch * subject.fixed.beams[-1]
    tiles = [DEFAULT_TILE]  # of the one row per request at step 0
    for step in range(1, subject.spec.sid_length):
        table = distinct_table(subject.spec, rows, step, device)
        tiles.append(best_tile(self_inputs(subject.spec, table, dtype), fused=fused))
    return tiles


def _found(sids: Tensor, scores: Tensor, subject: Subject) -> Found:
    nodes = torch.zeros(sids.shape[:2], dtype=torch.int64, device=sids.device)
    for position in range(subject.spec.sid_length):
        vocabulary = max(subject.spec.vocab_sizes)
        nodes = (nodes * vocabulary + sids[:, :, position] + 1) & _POSITIVE
    dead = scores == -torch.inf
    corrupt = torch.zeros(len(sids), dtype=torch.bool, device=sids.device)
    return Found(nodes.int().masked_fill(dead, NO_NODE), scores, corrupt)


def _matched(name: str, users: UserTensors, index: DecodeIndex) -> tuple[UserTensors, DecodeIndex]:
    if name == "D1":
        return users, index.without_matchers()
    if name == "D2":
        index, (users,) = bitmask_only(index, [users])
    return users, index
