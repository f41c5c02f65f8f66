"""Each rung of the ladder as a search over a user context, and what it should have found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from grace.bench.gpu.attention_inputs import distinct_table, self_inputs
from grace.bench.gpu.attention_variants import best_tile
from grace.bench.gpu.found import (
    Found,
    TracedFound,
    free_slot,
    nodes_of_sids,
    plain_found,
    plain_found_freely,
    traced_search,
)
from grace.bench.gpu.gtm import bitmask_only
from grace.bench.gpu.rotation import DecoderBatch
from grace.bench.gpu.subject import Engine, Subject
from grace.bench.rungs.coalesced_triton import DEFAULT_TILE, Tile
from grace.bench.rungs.dense_search import PLAIN, Pieces, Rung, compiled_pieces, dense_search
from grace.bench.rungs.ladder import DENSE_RUNGS, L1, L2, L3, tiled
from grace.bench.rungs.weights import RungWeights
from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, DecodeIndex, UserTensors, admission_slot
from grace.model.definition.inputs import UserContext

__all__ = ["RUNGS", "RungRun", "definition_of", "expected_of", "run_of"]

RUNGS = (*(rung.name for rung in DENSE_RUNGS), "L4", "D0", "D1", "D2", "D3")

_FREE = (*(rung.name for rung in DENSE_RUNGS), "L4", "D0")


@dataclass(frozen=True, slots=True)
class RungRun:
    """
    search    what is captured
    told      what a search came to, with nodes that tell which SID it is
    point_at  tells it a batch's users, before it is replayed
    looks_up  whether SIDs are of the catalogue, so that ads follow from them
    """

    name: str
    profile: BeamProfile
    search: Callable[[UserContext], TracedFound]
    told: Callable[[TracedFound], Found]
    point_at: Callable[[UserTensors], None]
    looks_up: bool


def run_of(name: str, subject: Subject, engine: Engine, index: DecodeIndex) -> RungRun:
    """`index` is in mode `union`."""
    dense = {rung.name: rung for rung in DENSE_RUNGS}
    if name in dense:
        return _dense_run(dense[name], subject, engine)
    profile = subject.fixed if name == "L4" else subject.dynamic
    looks_up = name not in _FREE
    slot: AdmissionSlot = admission_slot(engine.ops) if looks_up else free_slot(engine)

    def search(context: UserContext) -> TracedFound:
        return traced_search(engine, context, slot, profile)

    def told(traced: TracedFound) -> Found:
        return traced.found if looks_up else traced.numbered(max(subject.spec.vocab_sizes))

    def point_at(users: UserTensors) -> None:
        slot.point_at(*_matched(name, users, index))

    return RungRun(name, profile, search, told, point_at, looks_up)


def definition_of(name: str) -> str:
    """Equal for rungs that must find the same."""
    if name in _FREE:
        return "free, fixed beams" if name.startswith("L") else "free, dynamic beams"
    return name


def expected_of(
    name: str, subject: Subject, engine: Engine, index: DecodeIndex, batch: DecoderBatch
) -> Found:
    """In float32, by definition."""
    profile = subject.fixed if name.startswith("L") else subject.dynamic
    if name in _FREE:
        return plain_found_freely(engine.plain.decoder, batch.context, profile)
    own, mode = _matched(name, batch.users, index)
    return plain_found(engine.plain.decoder, batch.context, own, mode, profile)


def _dense_run(rung: Rung, subject: Subject, engine: Engine) -> RungRun:
    weights = engine.weights
    own = RungWeights.of(engine.plain.decoder, weights.device, weights.dtype)
    on_gpu = weights.device.type == "cuda"
    pieces: Pieces = compiled_pieces() if on_gpu else PLAIN
    if on_gpu and rung.name in (L2.name, L3.name):
        rung = tiled(rung, _tiles(subject, weights.dtype, weights.device, rung.name == L3.name))
    elif rung.name in (L2.name, L3.name):
        rung = replace(L1, name=rung.name)

    def search(context: UserContext) -> TracedFound:
        found = dense_search(own, context.states, subject.fixed, rung, pieces)
        told = nodes_of_sids(found.sids, found.scores, max(subject.spec.vocab_sizes))
        return TracedFound(told, ())

    return RungRun(
        name=rung.name,
        profile=subject.fixed,
        search=search,
        told=lambda traced: traced.found,
        point_at=lambda users: None,
        looks_up=False,
    )


def _tiles(
    subject: Subject, dtype: torch.dtype, device: torch.device, fused: bool
) -> Sequence[Tile]:
    rows = subject.batch * subject.fixed.beams[-1]
    tiles = [DEFAULT_TILE]  # of the one row per request at step 0
    for step in range(1, subject.spec.sid_length):
        table = distinct_table(subject.spec, rows, step, device)
        tiles.append(best_tile(self_inputs(subject.spec, table, dtype), fused=fused))
    return tiles


def _matched(name: str, users: UserTensors, index: DecodeIndex) -> tuple[UserTensors, DecodeIndex]:
    if name == "D1":
        return users, index.without_matchers()
    if name == "D2":
        index, (users,) = bitmask_only(index, [users])
    return users, index
