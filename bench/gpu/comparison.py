"""`grace bench others`: other systems and the engine, on the same decoder shape, catalogue and GPU.

hf              Hugging Face T5 `generate`, as many beams as fit, with everything it launches
hf prefix       the same with `prefix_allowed_tokens_fn` over the catalogue: valid SIDs only
ours, D0        the engine at the same beams, without constraints; D1: with the catalogue
static eager    one constrained step by STATIC's algorithm, in plain torch: log-softmax, its mask
                scattered into [rows, V], beams' scores added, torch.topk over the request's rows,
                and the chosen tokens' nodes gathered; static compiled: the same by torch.compile
ours, cd        the same step by the engine, in mode `cd`: children listed, scored and selected

Hugging Face's decoder attends to a context as wide as itself; its weights are random, like ours.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from grace.bench.gpu.instruments.measure import (
    free_memory,
    require_close,
    require_equal,
    require_overlap,
    timed_on_host,
)
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
from grace.bench.rungs.static_mask import KeptBeams, StaticStep, static_beams, static_index
from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, AdmissionSlot, Beams, DecodeIndex, admission_slot
from grace.model.engine.precision import PRECISIONS

_BEAMS = (16, 64, 256, 512, 1024)
_PREFIX_BEAMS = (16, 64, 256)  # beyond, a call takes many seconds
_TINY_BEAMS = (2, 4)
_ROUNDS = 4  # of one step in a run, so that it is long enough to be launched ahead
_LEAST_OF_A_STEP = 0.999  # of its nodes: the same float32 logits, summed in another order


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    parts, catalogue = work.options.parts(), work.catalogue()
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    if "ours" in parts or "static" in parts:
        engine = work.random_engine(work.options.precisions[0])
        index = DecodeIndex.of(snapshot, work.device).without_matchers()
        (context,) = work.contexts(engine.weights.dtype, 1)
        (users,) = catalogue.users(snapshot, work.device, 1, work.batch)
        batch = DecoderBatch(context, users)
        if "ours" in parts:
            yield from _ours(work, engine, batch, index)
        if "static" in parts:
            yield from _static(work, engine, batch, index)
        del engine, index, context, users, batch
    if "hf" in parts:
        yield from _hf(work, "hf", _BEAMS, None)
    if "prefix" in parts:
        yield from _hf(work, "hf prefix", _PREFIX_BEAMS, hf_t5.allowed_by_trie(snapshot.trie))


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
        row["seconds"] = options.seconds
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


def _static(
    work: Workload, engine: Engine, batch: DecoderBatch, index: DecodeIndex
) -> Iterator[Row]:
    """Measure each step alone, for the beams of a generation in mode `cd`.

    Both sides get the same float32 logits and beams, and leave the same kind of beams.
    """
    slot = admission_slot(engine.ops)
    slot.point_at(batch.users, index)
    steps = traced_steps(engine, batch.context, slot, work.dynamic)
    static = static_index(index)
    compiled = torch.compile(static_beams, dynamic=False) if work.on_gpu else static_beams
    for number, step in enumerate(steps):
        given = _static_step(step, index)
        calls: dict[str, Callable[[], KeptBeams]] = {
            "static eager": partial(static_beams, static, number, given),
            "static compiled": partial(compiled, static, number, given),
            "ours, cd": partial(_our_step, engine, slot, step),
        }
        defined = step.select(REFERENCE)
        for name, call in calls.items():
            check = partial(_check_kept, f"step {number}, {name}", defined, index)
            timing = work.timed_calls([call] * _ROUNDS, check)
            row = {"measure": "step", "variant": name, "step": number}
            rows = step.nodes.numel()
            yield row | {"beams": rows, "seconds": work.options.seconds, **timing.row()}


def _our_step(engine: Engine, slot: AdmissionSlot, step: StepInputs) -> KeptBeams:
    beams = step.select(engine.ops, slot.admit_children(step.nodes))
    return KeptBeams(beams.parents, beams.tokens, beams.nodes, beams.scores)


def _static_step(step: StepInputs, index: DecodeIndex) -> StaticStep:
    """Put a dead beam at the root, with a score that keeps it out."""
    nodes = step.nodes.flatten().clamp(min=0)
    tokens = index.csr_tokens[(nodes - 1).clamp(min=0).long()].long()
    return StaticStep(step.selection, tokens, nodes)


def _check_kept(what: str, expected: Beams, index: DecodeIndex, _: int, got: KeptBeams) -> None:
    """Require the defined scores, tokens that lead to their nodes, and the defined nodes except
    near-ties."""
    scores, defined = (x.sort(dim=1)[0].clamp(min=-1e4) for x in (got.scores, expected.scores))
    require_close(f"{what}, scores", scores, defined)
    live = got.scores > -torch.inf
    nodes = got.nodes.masked_fill(~live, NO_NODE)
    leading = index.csr_tokens[(nodes[live] - 1).long()].long()
    require_equal(f"{what}, tokens", got.tokens[live].long(), leading)
    counts = [shared(one, other) for one, other in zip(nodes, expected.nodes, strict=True)]
    common, total = (sum(each) for each in zip(*counts, strict=True))
    require_overlap(f"{what}, nodes", common / max(1, total), _LEAST_OF_A_STEP)
