"""`grace bench peers`: other programs and the engine, on the same shape, catalogue and GPU.

hf, hf prefix    Hugging Face T5 `generate`, as many beams as fit, with everything it launches;
                 with `prefix_allowed_tokens_fn` over the catalogue: valid SIDs only
ours, D0         the engine at the same beams, without constraints; D1: with the catalogue
steps            one constrained step by STATIC, RecTokens and FlashRec, as far as they are
                 installed, and by the engine in mode `cd`, on the same beams and logits or factors
shapes           the engine at shapes with published numbers. Of GR4AD's, only beams and positions
                 are known: the paper's decoder has these

Hugging Face's decoder attends to a context as wide as itself; all weights are random.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from grace.bench.gpu import causal
from grace.bench.gpu.instruments.measure import (
    free_memory,
    require_close,
    require_equal,
    require_overlap,
    sustained,
    timed_on_host,
)
from grace.bench.gpu.subjects.causal_model import random_index
from grace.bench.gpu.subjects.search import (
    LEAST_OVERLAP,
    DecoderBatch,
    DecoderGraph,
    StepInputs,
    engine_search,
    plain_result,
    shared,
    traced_steps,
    unconstrained_result,
)
from grace.bench.gpu.subjects.workload import Engine, Workload
from grace.bench.result_file import Row
from grace.bench.rungs import hf_t5
from grace.bench.rungs.peer_steps import (
    WITH_HEAD,
    Absent,
    KeptBeams,
    Peer,
    PeerCatalogue,
    PeerStep,
    found_peers,
)
from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import (
    REFERENCE,
    AdmissionSlot,
    Beams,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
)
from grace.kernels.decode.select_beams import Choice
from grace.kernels.row_stable import linear
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.precision import PRECISIONS, Precision

_BEAMS = (16, 64, 256, 512, 1024)
_PREFIX_BEAMS = (16, 64, 256)  # beyond, a call takes many seconds
_TINY_BEAMS = (2, 4)
_ROUNDS = 4  # of one step in a run, so that it is long enough to be launched ahead
_LEAST_OF_A_STEP: Mapping[Precision, float] = {"fp32": 0.999, "bf16": LEAST_OVERLAP["bf16"]}
"""The least share of a step's nodes: sums in another order, or rounded, exchange near-ties."""


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    parts, catalogue = work.options.parts(), work.catalogue()
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    if "ours" in parts or "steps" in parts:
        engine = work.random_engine(work.options.precisions[0])
        index = DecodeIndex.of(snapshot, work.device).without_matchers()
        (context,) = work.contexts(engine.weights.dtype, 1)
        (users,) = catalogue.users(snapshot, work.device, 1, work.batch)
        batch = DecoderBatch(context, users)
        if "ours" in parts:
            yield from _ours(work, engine, batch, index)
        if "steps" in parts:
            of_all = PeerCatalogue(snapshot.trie, index, engine.vocabulary)
            yield from _steps(work, engine, batch, of_all)
        del engine, index, context, users, batch
    if "hf" in parts:
        yield from _hf(work, "hf", _BEAMS, None)
    if "prefix" in parts:
        yield from _hf(work, "hf prefix", _PREFIX_BEAMS, hf_t5.allowed_by_trie(snapshot.trie))
    if "shapes" in parts:
        yield from _shapes(work)


def _hf(
    work: Workload, name: str, beams: tuple[int, ...], allowed: hf_t5.AllowedTokens | None
) -> Iterator[Row]:
    options, spec, precision = work.options, work.spec.decoder, work.options.precisions[0]
    dtype, length = PRECISIONS[precision], work.spec.sid_length
    model = hf_t5.hf_decoder(spec, work.spec.vocab_sizes, work.device, dtype, seed=1)
    shape = (work.batch, work.spec.context_tokens, spec.d_model)
    states = torch.randn(shape, device=work.device).to(dtype)
    for width in _TINY_BEAMS if options.tiny else beams:
        call = partial(hf_t5.hf_generate, model, states, width, length, allowed)
        row: Row = {"measure": "generate", "variant": name, "beams": width}
        row |= {"version": transformers.__version__, "seconds": options.seconds}
        try:
            expected = hf_t5.plain_generate(model, states, width, length, allowed)
            share = hf_t5.shared_sequences(call(), expected, width)
            require_overlap(f"{name}, {width} beams", share, LEAST_OVERLAP[precision])
            del expected
            free_memory(work.device)
            if work.on_gpu:
                torch.cuda.reset_peak_memory_stats(work.device)
            timing = timed_on_host(call, work.device, options.seconds)
        except torch.cuda.OutOfMemoryError:
            yield {**row, "unavailable": "out of memory"}
            break
        if work.on_gpu:
            row["peak_gb"] = round(torch.cuda.max_memory_allocated(work.device) / 1e9, 1)
        yield {**row, **timing.row()}


def _ours(work: Workload, engine: Engine, batch: DecoderBatch, index: DecodeIndex) -> Iterator[Row]:
    decoder, length = engine.plain.decoder, work.spec.sid_length
    seconds, dtype = work.options.seconds, engine.weights.dtype
    for width in _TINY_BEAMS if work.options.tiny else _BEAMS:
        profile = BeamProfile((1, *[width] * (length - 1)), width)
        free = DecoderGraph(work, engine_search(engine, profile, None), [batch], dtype)
        bound = DecoderGraph(work, engine_search(engine, profile, index), [batch], dtype)
        for name, graph, expected in (
            ("ours, D0", free, unconstrained_result(decoder, batch.context, profile)),
            ("ours, D1", bound, plain_result(decoder, batch, index, profile)),
        ):
            graph.check(f"{name}, {width} beams", [expected], work.options.precisions[0])
            timing = timed_on_host(graph, work.device, seconds)
            row = {"measure": "generate", "variant": name, "beams": width}
            yield row | {"seconds": seconds, **timing.row()}


def _steps(
    work: Workload, engine: Engine, batch: DecoderBatch, catalogue: PeerCatalogue
) -> Iterator[Row]:
    """Measure each step alone, with the paper's beams and with what FlashRec's kernel takes."""
    slot, narrow = admission_slot(engine.ops), _narrow(work, work.spec.sid_length)
    slot.point_at(batch.users, catalogue.index)
    steps: dict[tuple[int, ...], PeerStep] = {}
    for profile in (work.dynamic, narrow):
        for number, step in enumerate(traced_steps(engine, batch.context, slot, profile)):
            size = number, step.nodes.shape[1], step.selection.k
            steps.setdefault(size, _given(number, step, engine.weights))
    for peer in chain([_Ours(engine.ops, slot)], found_peers(work.options.static, catalogue)):
        row: Row = {"measure": "step", "variant": peer.name}
        if isinstance(peer, Absent):
            print(f"{peer.name}: {peer.reason}", file=sys.stderr)
            yield {**row, "unavailable": peer.reason}
            continue
        for (number, beams, kept), given in steps.items():
            for form, call in peer.calls(given).items():
                what = f"step {number}, {peer.name}, {form}"
                defined = _defined(given, slot, form == WITH_HEAD, peer.sums_children)
                check = partial(_check_kept, what, defined, given, peer, catalogue.edges)
                timing = work.timed_calls([call] * _ROUNDS, check)
                row |= {"variant": f"{peer.name}, {form}", "version": peer.version, "step": number}
                row |= {"beams": beams, "kept": kept, "seconds": work.options.seconds}
                yield {**row, **timing.row()}


class _Ours(Peer):
    """The engine lists, scores and selects the children. `cd` begins at logits."""

    name, version = "ours", ""

    def __init__(self, ops: Ops, slot: AdmissionSlot) -> None:
        self._ops, self._slot = ops, slot

    def calls(self, given: PeerStep) -> dict[str, Callable[[], KeptBeams]]:
        step = partial(self._step, given, _live(given))
        return {"cd": step, WITH_HEAD: partial(step, of_head=True)}

    def _step(self, given: PeerStep, nodes: Tensor, of_head: bool = False) -> KeptBeams:
        logits = _product(given) if of_head else given.logits
        admitted = self._slot.admit_children(nodes)
        choice = Choice(logits, given.scores, admitted, given.k, ordered=False)
        beams = self._ops.select_beams(choice)
        return KeptBeams(beams.parents, beams.tokens, beams.scores, beams.nodes)


def _given(number: int, step: StepInputs, weights: FastWeights) -> PeerStep:
    """Return the step for any program, with random factors whose logits are similar."""
    choice, width = step.selection, weights.spec.d_model
    logits = choice.logits.float()
    if choice.row_scale is not None:
        logits = logits * choice.row_scale.unsqueeze(1)
    generator = torch.Generator(logits.device).manual_seed(number)
    hidden, head = (
        torch.randn((count, width), generator=generator, device=logits.device)
        for count in logits.shape
    )
    hidden, head = hidden.to(weights.dtype), (head * (2 / width**0.5)).to(weights.dtype)
    nodes = step.nodes.flatten().long().clamp(min=0)
    return PeerStep(number, nodes, logits, choice.scores, choice.k, hidden, head)


def _live(given: PeerStep) -> Tensor:
    nodes = given.nodes.view(given.scores.shape).int()
    return nodes.masked_fill(given.scores == -torch.inf, NO_NODE)


def _product(given: PeerStep) -> Tensor:
    if not given.hidden.is_cuda:
        return linear(given.hidden, given.head).float()
    return torch.mm(given.hidden, given.head.t(), out_dtype=torch.float32)


def _defined(given: PeerStep, slot: AdmissionSlot, of_head: bool, of_children: bool) -> Beams:
    logits, sums = _product(given) if of_head else given.logits, None
    admitted = slot.admit_children(_live(given)).packed()
    if of_children:
        rows = torch.arange(len(logits), device=logits.device)
        places = rows.repeat_interleave(admitted.offsets.diff()), admitted.tokens.long()
        children = torch.full_like(logits, -torch.inf)
        children[places] = logits[places]
        sums = children.logsumexp(dim=1)
    return REFERENCE.select_beams(
        Choice(logits, given.scores, admitted, given.k, ordered=False, log_sums=sums)
    )


def _check_kept(
    what: str, expected: Beams, given: PeerStep, peer: Peer, edges: Tensor, _: int, got: KeptBeams
) -> None:
    """Require the defined scores, tokens that continue their parents, the program's own numbers of
    the nodes, and the defined nodes except near-ties."""
    rounded: Precision = "bf16" if peer.sums_children else "fp32"
    short = (0, given.k - got.scores.shape[1])  # of candidates, in a small catalogue
    pad = partial(functional.pad, pad=short)
    got = KeptBeams(*map(pad, got))._replace(scores=pad(got.scores, value=-torch.inf))
    scores, defined = (x.sort(dim=1)[0].clamp(min=-1e4) for x in (got.scores, expected.scores))
    require_close(f"{what}, scores", scores, defined, PRECISIONS[rounded])
    live, vocabulary = got.scores > -torch.inf, given.logits.shape[1]
    asked = given.nodes[got.parents[live].long()] * vocabulary + got.tokens[live]
    found = torch.searchsorted(edges, asked).clamp(max=len(edges) - 1)
    require_equal(f"{what}, tokens", edges[found], asked)
    require_equal(
        f"{what}, states", got.states[live].long(), peer.states(given.number + 1, found + 1)
    )
    nodes = torch.full_like(got.scores, NO_NODE, dtype=torch.int64)
    nodes[live] = found + 1
    counts = [shared(one, other) for one, other in zip(nodes, expected.nodes, strict=True)]
    common, total = (sum(each) for each in zip(*counts, strict=True))
    require_overlap(f"{what}, nodes", common / max(1, total), _LEAST_OF_A_STEP[rounded])


def _shapes(work: Workload) -> Iterator[Row]:
    for precision in work.options.precisions:
        yield causal.agreement(work, precision)
        for name in ("sid-gr-256", "sid-gr-2048"):
            free_memory(work.device)
            yield from causal.whole(work, causal.shape_of(work, name), "all", precision)
        yield _gr4ad(work, precision)


def _gr4ad(whole: Workload, precision: Precision) -> Row:
    """Measure the decoder alone: its contexts are given."""
    work = replace(whole, spec=replace(whole.spec, vocab_sizes=whole.spec.vocab_sizes[:3]))
    engine, device = work.random_engine(precision), work.device
    profile, index = _narrow(work, 3), random_index(work.spec.vocab_sizes, work.sids, device)
    (context,) = work.contexts(engine.weights.dtype, 1)
    nothing = torch.zeros((work.batch, 1), dtype=torch.int64, device=device)
    batch = DecoderBatch(context, UserTensors.asking(nothing))
    search = engine_search(engine, profile, index)
    graph = DecoderGraph(work, search, [batch], engine.weights.dtype)
    expected = plain_result(engine.plain.decoder, batch, index, profile)
    graph.check("the shape of GR4AD", [expected], precision)
    timing = sustained(graph, device, work.options.seconds)
    return {
        "measure": "whole",
        "variant": "GR4AD",
        "mode": "all",
        "kind": "decoder alone",
        "precision": precision,
        "batch": work.batch,
        "tokens": work.spec.context_tokens,
        "padding": 0.0,
        **timing.row(),
        "requests_per_s": round(work.batch / timing.mean_ms * 1e3, 1),
    }


def _narrow(work: Workload, length: int) -> BeamProfile:
    width = _TINY_BEAMS[-1] if work.options.tiny else 512
    return BeamProfile((1, *[width] * (length - 1)), width)
