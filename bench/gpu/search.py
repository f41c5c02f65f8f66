"""Beam searches as benchmarks run them: recorded as graphs, traced step by step, and compared.

No search is timed unless it generates what the plain beam search does in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch
from torch import Tensor

from grace.bench.gpu.measure import require_close, require_overlap
from grace.bench.gpu.workload import Engine, Workload
from grace.bench.rungs.dense_search import L1, RungWeights, dense_search
from grace.bench.rungs.every_token import EveryToken
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import (
    REFERENCE,
    AdmissionSlot,
    Beams,
    Candidates,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
)
from grace.model.definition.beam_search import beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.engine.decode_loop import fast_search
from grace.model.engine.decode_weights import PRECISIONS, Precision

LEAST_OVERLAP: dict[Precision, float] = {"fp32": 0.97, "fp16": 0.8, "bf16": 0.7}
"""The least share of float32's SIDs: rounding exchanges near-ties at the end of the list."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search generated, in the device's memory.

    nodes  int32 [B, num_sids], NO_NODE of dead beams; without constraints int64, numbered breadth
           first in the trie of every SID
    """

    nodes: Tensor
    scores: Tensor
    corrupt: Tensor


@dataclass(frozen=True, slots=True)
class TracedResult:
    """A search's result as it was left; `places` are the nodes of the beams after each step.

    Without constraints the engine's nodes are places among a step's candidates (EveryToken). A
    place gives parent and token; all of them together give the SID. Keeping them costs nothing.
    """

    result: SearchResult
    places: tuple[Tensor, ...] = ()

    def numbered(self, vocabulary: int) -> SearchResult:
        """The result of a search without constraints, its nodes numbered in the whole trie."""
        numbers = torch.zeros(len(self.places[0]), dtype=torch.int64, device=self.places[0].device)
        for places in self.places:
            live = places.clamp(min=0).flatten().long()
            parents, tokens = live // vocabulary, live % vocabulary
            numbers = numbers[parents] * vocabulary + tokens + 1
        nodes = numbers.view(self.result.nodes.shape)
        dead = self.result.scores == -torch.inf
        return replace(self.result, nodes=nodes.masked_fill(dead, NO_NODE))


@dataclass(frozen=True, slots=True)
class Search:
    """A beam search that can be recorded.

    run          what is recorded
    result       what a run generated, with nodes that identify its SIDs
    point_at     selects a batch's users, before a replay
    constrained  whether its SIDs are of the catalogue, so that ads follow from them
    """

    profile: BeamProfile
    run: Callable[[UserContext], TracedResult]
    result: Callable[[TracedResult], SearchResult]
    point_at: Callable[[UserTensors], None]
    constrained: bool


def engine_search(engine: Engine, profile: BeamProfile, index: DecodeIndex | None) -> Search:
    """Return the engine's search over the index; without constraints where there is none."""
    if index is None:
        every = EveryToken(engine.vocabulary)
        return Search(
            profile,
            run=lambda context: traced_search(engine, context, every, profile),
            result=lambda traced: traced.numbered(engine.vocabulary),
            point_at=lambda users: None,
            constrained=False,
        )
    slot = admission_slot(engine.ops)
    return Search(
        profile,
        run=lambda context: traced_search(engine, context, slot, profile),
        result=lambda traced: traced.result,
        point_at=lambda users: slot.point_at(users, index),
        constrained=True,
    )


def traced_search(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> TracedResult:
    """Run the engine's search, which may be recorded."""
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
    return TracedResult(SearchResult(found.nodes, found.scores, found.corrupt), tuple(places))


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """What a decoder is given; the context in float32 or in the decoder's precision."""

    context: UserContext
    users: UserTensors


class DecodeInputs:
    """Where a recorded search reads its inputs: call it to put the next batch there.

    A graph reads a context where it was when the graph was recorded, and users where its slot
    points. The next batch is put there between two runs, outside of what is timed: a copy of a few
    megabytes and a kernel that sets the slot, as the server does before a replay.
    """

    def __init__(
        self,
        batches: Sequence[DecoderBatch],
        dtype: torch.dtype,
        point_at: Callable[[UserTensors], None],
    ) -> None:
        self._states = [batch.context.states.to(dtype) for batch in batches]
        self._masks = [batch.context.mask for batch in batches]
        self._users = [batch.users for batch in batches]
        self._point_at = point_at
        self._next = 0
        self.context = UserContext(self._states[0].clone(), self._masks[0].clone())
        self()

    def __call__(self) -> None:
        self.put(self._next)

    @torch.inference_mode()
    def put(self, number: int) -> None:
        self.context.states.copy_(self._states[number])
        self.context.mask.copy_(self._masks[number])
        self._point_at(self._users[number])
        self._next = (number + 1) % len(self._users)


class DecoderGraph:
    """A whole decode loop as one graph: cross-attention's keys and values, and every step.

    Call it to run it; `inputs` puts the next batch in place before.
    """

    def __init__(
        self, work: Workload, search: Search, batches: Sequence[DecoderBatch], dtype: torch.dtype
    ) -> None:
        inputs = DecodeInputs(batches, dtype, search.point_at)
        self.inputs, self._search = inputs, search
        self._graph = work.record(lambda: search.run(inputs.context))

    def __call__(self) -> TracedResult:
        return self._graph()

    @torch.inference_mode()
    def check(self, what: str, expected: Sequence[SearchResult], precision: Precision) -> float:
        """Return the share of float32's SIDs over the batches; raise if a result is wrong."""
        shares = []
        for number, wanted in enumerate(expected):
            self.inputs.put(number)
            got = self._search.result(self())
            shares.append(check_result(f"{what}, batch {number}", got, wanted, precision))
        self.inputs.put(0)
        return mean(shares)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The arguments of one step's admission (`nodes` int32 [B, M]) and of its selection."""

    nodes: Tensor
    logits: Tensor
    scores: Tensor
    candidates: Candidates
    kept: int
    ordered: bool
    row_scale: Tensor | None

    def select(self, ops: Ops, candidates: Candidates | None = None) -> Beams:
        """Select beams as the step does; among other candidates if they are given."""
        return ops.select_beams(
            self.logits,
            self.scores,
            self.candidates if candidates is None else candidates,
            self.kept,
            self.ordered,
            self.row_scale,
        )


class _TracingSlot:
    """A slot that keeps the nodes it was asked about."""

    def __init__(self, slot: AdmissionSlot) -> None:
        self._slot = slot
        self.nodes: list[Tensor] = []

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        self._slot.point_at(users, index)

    def admit_children(self, nodes: Tensor) -> Candidates:
        self.nodes.append(nodes.clone())
        return self._slot.admit_children(nodes)


@torch.inference_mode()
def traced_steps(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> list[StepInputs]:
    """Return what each step of one generation asks of admission and selection.

    Operations are launched one by one; the slot already points at users and index.
    """
    tracing = _TracingSlot(slot)
    steps: list[StepInputs] = []

    def select(
        logits: Tensor, scores: Tensor, candidates: Candidates, k: int, ordered: bool,
        row_scale: Tensor | None = None,
    ) -> Beams:  # fmt: skip
        factors = None if row_scale is None else row_scale.clone()
        steps.append(
            StepInputs(
                tracing.nodes[-1], logits.clone(), scores.clone(), _copy(candidates), k, ordered,
                factors,
            )
        )  # fmt: skip
        return engine.ops.select_beams(logits, scores, candidates, k, ordered, row_scale)

    ops = replace(engine.ops, select_beams=select)
    fast_search(engine.weights, engine.memo, context, tracing, profile, ops)
    return steps


def _copy(candidates: Candidates) -> Candidates:
    """A slot may use the same memory again in the next step."""
    counts = candidates.counts
    return Candidates(
        candidates.offsets.clone(),
        candidates.tokens.clone(),
        candidates.nodes.clone(),
        None if counts is None else counts.clone(),
    )


def plain_result(
    decoder: Decoder, batch: DecoderBatch, index: DecodeIndex, profile: BeamProfile
) -> SearchResult:
    """Generate by definition, in float32."""
    whole = UserContext(batch.context.states.float(), batch.context.mask)
    generated = beam_search(decoder, whole, batch.users, index, profile, REFERENCE)
    dead = generated.leaves == NO_NODE
    nodes = (generated.leaves + index.first_leaf).masked_fill(dead, NO_NODE)
    return SearchResult(nodes, generated.scores, generated.corrupt)


def unconstrained_result(
    decoder: Decoder, context: UserContext, profile: BeamProfile
) -> SearchResult:
    """Generate without constraints: L1 in float32, the plain loop over a catalogue of every SID."""
    weights = RungWeights.of(decoder, context.states.device, torch.float32)
    found = dense_search(weights, context.states.float(), profile, L1)
    return result_of_sids(found.sids, found.scores, max(weights.vocab_sizes))


def result_of_sids(sids: Tensor, scores: Tensor, vocabulary: int) -> SearchResult:
    """sids int32 [B, num_sids, L], scores [B, num_sids]; nodes numbered in the trie of every SID"""
    nodes = torch.zeros(sids.shape[:2], dtype=torch.int64, device=sids.device)
    for position in range(sids.shape[2]):
        nodes = nodes * vocabulary + sids[:, :, position] + 1
    dead = scores == -torch.inf
    corrupt = torch.zeros(len(sids), dtype=torch.bool, device=sids.device)
    return SearchResult(nodes.masked_fill(dead, NO_NODE), scores, corrupt)


def check_result(
    what: str, got: SearchResult, expected: SearchResult, precision: Precision
) -> float:
    """Return the share of float32's SIDs that were found; raise if it is not the same function.

    The scores of shared SIDs must be close; which others are exchanged depends on near-ties.
    """
    share = overlap(got, expected)
    require_overlap(f"{what} in {precision}", share, LEAST_OVERLAP[precision])
    scores, defined = _common_scores(got, expected)
    if len(scores):
        require_close(f"{what} in {precision}, scores", scores.to(PRECISIONS[precision]), defined)
    return share


def _common_scores(got: SearchResult, expected: SearchResult) -> tuple[Tensor, Tensor]:
    """The scores of all SIDs that both have.   [n], [n]"""
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


def overlap(got: SearchResult, expected: SearchResult) -> float:
    """The share of the expected live SIDs that were found, over all requests; 1 if none is live."""
    common = total = 0
    for one, other in zip(got.nodes, expected.nodes, strict=True):
        wanted = other[other != NO_NODE]
        common += int(torch.isin(wanted, one).sum())
        total += len(wanted)
    return common / total if total else 1.0
