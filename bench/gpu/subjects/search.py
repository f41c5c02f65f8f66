"""Beam searches as benchmarks run them: recorded as graphs, traced step by step, and compared.

No search is timed unless it generates what the plain beam search does in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch
from torch import Tensor

from grace.bench.gpu.instruments.measure import require_close, require_equal, require_overlap
from grace.bench.gpu.subjects.workload import Engine, Workload
from grace.bench.rungs.dense_search import L1, RungDecoder, dense_search
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
    with_eligible,
)
from grace.kernels.decode.select_beams import Choice
from grace.kernels.products.fp8_products import E4M3
from grace.model.definition.beam_search import beam_search, root_beams
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext, map_tensors
from grace.model.engine.encoder_decoder.decode_loop import fast_search
from grace.model.engine.precision import PRECISIONS, Precision

LEAST_OVERLAP: dict[Precision, float] = {"fp32": 0.97, "bf16": 0.7, "fp8": 0.6}
"""The least share of float32's SIDs: rounding exchanges near-ties at the end of the list."""


class EveryToken:
    """An AdmissionSlot without constraints: every token continues every beam, live or dead.

    Without constraints nothing reads the nodes. So a node is its candidate's place,
    row * V + token, which is the same in every batch and needs no work.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._layouts: dict[int, Candidates] = {}

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """Do nothing: the candidates depend on neither users nor index."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        """Return the candidates. The first run makes them, before a graph is recorded."""
        rows, size = nodes.numel(), self._vocabulary
        if rows not in self._layouts:
            places = torch.arange((rows + 1) * size, dtype=torch.int32, device=nodes.device)
            self._layouts[rows] = Candidates(
                offsets=places[::size].contiguous(),
                tokens=places[:size].repeat(rows),
                nodes=places[:-size],
                counts=torch.full_like(places[:rows], size),
            )
        return self._layouts[rows]

    def leaves_of(self, nodes: Tensor) -> Tensor:
        """Return the nodes: without a trie there are no other numbers."""
        return nodes


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
        """Return the nodes of an unconstrained search, as int64.

        They are numbered breadth first in the trie of every possible SID.
        """
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


def observed(ops: Ops, observe: Callable[[Choice, Beams], None]) -> Ops:
    """Return the operations; each selection also calls `observe` with itself and its beams."""

    def select_beams(given: Choice) -> Beams:
        beams = ops.select_beams(given)
        observe(given, beams)
        return beams

    return replace(ops, select_beams=select_beams)


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
        point_at=lambda users: slot.point_at(seen_users(index, users), index),
        constrained=True,
    )


def seen_users(index: DecodeIndex, users: UserTensors) -> UserTensors:
    """Return the users without sets if the index has no Bloom rows to test them."""
    return replace(users, asked=users.asked[: 1 + len(index.blooms)])


@torch.inference_mode()
def eligible_users(
    batches: Sequence[UserTensors], index: DecodeIndex, ops: Ops
) -> list[UserTensors]:
    """Return the users with their eligible nodes if the index has mode `exact`.

    As in a server, this is done before a search begins. Raise if the nodes are not those of the
    definition.
    """
    made = [with_eligible(users, index, ops) for users in batches]
    for number, (users, own) in enumerate(zip(batches, made, strict=True)):
        if own.eligible is not None:
            defined = REFERENCE.eligible_nodes(users, index)
            require_equal(f"eligible nodes, batch {number}", own.eligible, defined)
    return made


def traced_search(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> TracedResult:
    """Run the engine's search, which may be recorded."""
    places: list[Tensor] = []
    ops = observed(engine.ops, lambda _, beams: places.append(beams.nodes))
    found = fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    result = SearchResult(found.nodes, found.scores, found.corrupt)
    return TracedResult(result, tuple(places))


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The arguments of one step's admission (`nodes` int32 [B, M]) and of its selection."""

    nodes: Tensor
    selection: Choice

    @property
    def admitted(self) -> Candidates:
        return self.selection.candidates.packed()

    def select(self, ops: Ops, candidates: Candidates | None = None) -> Beams:
        """Select beams from the step's own candidates, or from the given ones."""
        given = self.selection
        return ops.select_beams(replace(given, candidates=candidates or given.candidates))


@torch.inference_mode()
def traced_steps(
    engine: Engine, context: UserContext, slot: AdmissionSlot, profile: BeamProfile
) -> list[StepInputs]:
    """Return the inputs of each step's admission and selection in one generation.

    Operations are launched one by one. The slot must already point at users and index.
    """
    nodes = [root_beams(len(context.states), context.states.device).nodes]
    steps: list[StepInputs] = []

    def keep(given: Choice, beams: Beams) -> None:
        # A copy, since the next step of the search may overwrite the memory.
        steps.append(StepInputs(nodes[-1], map_tensors(given, Tensor.clone)))
        nodes.append(beams.nodes.clone())

    ops = observed(engine.ops, keep)
    fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    return steps


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """What a decoder is given; the context in float32 or in the decoder's precision."""

    context: UserContext
    users: UserTensors


class DecoderGraph:
    """A whole decode loop as one graph: cross-attention's keys and values, and every step.

    A graph reads a context where it was when the graph was recorded, and users where its slot
    points. `take_next` puts the next batch there between two runs, outside of what is timed: a copy
    of a few megabytes and a kernel that sets the slot, as the server does before a replay.
    """

    def __init__(
        self, work: Workload, search: Search, batches: Sequence[DecoderBatch], dtype: torch.dtype
    ) -> None:
        self._search = search
        self._batches = [
            replace(each, context=UserContext(each.context.states.to(dtype), each.context.mask))
            for each in batches
        ]
        self._next = 0
        context = self._context = map_tensors(self._batches[0].context, Tensor.clone)
        self.take_next()
        self._graph = work.record(lambda: search.run(context))

    def __call__(self) -> TracedResult:
        return self._graph()

    @torch.inference_mode()
    def take_next(self) -> None:
        batch = self._batches[self._next]
        self._context.states.copy_(batch.context.states)
        self._context.mask.copy_(batch.context.mask)
        self._search.point_at(batch.users)
        self._next = (self._next + 1) % len(self._batches)

    @torch.inference_mode()
    def check(self, what: str, expected: Sequence[SearchResult], precision: Precision) -> float:
        """Return the share of float32's SIDs over the batches; raise if a result is wrong."""
        shares, self._next = [], 0
        for number, wanted in enumerate(expected):
            self.take_next()
            got = self._search.result(self())
            shares.append(check_result(f"{what}, batch {number}", got, wanted, precision))
        return mean(shares)


def plain_result(
    decoder: Decoder, batch: DecoderBatch, index: DecodeIndex, profile: BeamProfile
) -> SearchResult:
    """Generate by definition, in float32."""
    whole = UserContext(batch.context.states.float(), batch.context.mask)
    users = seen_users(index, batch.users)
    generated = beam_search(decoder, whole, users, index, profile, REFERENCE)
    dead = generated.leaves == NO_NODE
    nodes = (generated.leaves + index.first_leaf).masked_fill(dead, NO_NODE)
    return SearchResult(nodes, generated.scores, generated.corrupt)


def unconstrained_result(
    decoder: Decoder, context: UserContext, profile: BeamProfile
) -> SearchResult:
    """Generate without constraints: L1 in float32, the plain loop over a catalogue of every SID."""
    plain = RungDecoder.of(decoder, context.states.device, torch.float32)
    return result_of_sids(*dense_search(plain, context.states.float(), profile, L1), decoder)


def result_of_sids(sids: Tensor, scores: Tensor, decoder: Decoder) -> SearchResult:
    """sids int32 [B, num_sids, L], scores [B, num_sids]; nodes numbered in the trie of every SID"""
    vocabulary = max(decoder.vocab_sizes)
    nodes = torch.zeros(sids.shape[:2], dtype=torch.int64, device=sids.device)
    for position in range(sids.shape[2]):
        nodes = nodes * vocabulary + sids[:, :, position] + 1
    corrupt = torch.zeros(len(sids), dtype=torch.bool, device=sids.device)
    return SearchResult(nodes.masked_fill(scores == -torch.inf, NO_NODE), scores, corrupt)


def check_result(
    what: str, got: SearchResult, expected: SearchResult, precision: Precision
) -> float:
    """Return the share of float32's SIDs that were found; raise if it is not the same function.

    The scores of shared SIDs must be close; which others are exchanged depends on near-ties.
    """
    share = overlap(got, expected)
    require_overlap(f"{what} in {precision}", share, LEAST_OVERLAP[precision])
    found, defined = [], []
    for one, own, other, wanted in zip(
        got.nodes, got.scores, expected.nodes, expected.scores, strict=True
    ):
        common = torch.isin(other, one) & (other != NO_NODE)
        nodes, order = one.sort()
        at = torch.searchsorted(nodes, other[common])
        found.append(own[order[at]].float())
        defined.append(wanted[common].float())
    scores = torch.cat(found)
    if len(scores):
        dtype = PRECISIONS[precision]
        rounded = E4M3 if precision == "fp8" else dtype
        require_close(
            f"{what} in {precision}, scores", scores.to(dtype), torch.cat(defined), rounded
        )
    return share


def shared(found: Tensor, wanted: Tensor) -> tuple[int, int]:
    """Return how many live nodes of `wanted` are in `found`, and how many there are."""
    live = wanted[wanted != NO_NODE]
    return int(torch.isin(live, found).sum()), len(live)


def overlap(got: SearchResult, expected: SearchResult) -> float:
    """The share of the expected live SIDs that were found, over all requests; 1 if none is live."""
    counts = [shared(one, other) for one, other in zip(got.nodes, expected.nodes, strict=True)]
    common, total = (sum(each) for each in zip(*counts, strict=True))
    return common / total if total else 1.0
