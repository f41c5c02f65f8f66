"""What others do, on the same decoder shape, catalogue and GPU, beside the engine in the same run.

hf             Hugging Face T5 `generate`, beams as wide as they survive, everything it launches
hf prefix      the same with `prefix_allowed_tokens_fn` over the catalogue: valid SIDs only
ours, D0       the engine at the same beams, without constraints; D1: with the catalogue
static eager   one constrained step after STATIC's algorithm, in plain torch: log-softmax, its mask
               scattered into [rows, V], beams' scores added, torch.topk over the request's rows,
               and the chosen tokens' nodes gathered; static compiled: the same by torch.compile
ours, cd       the same step by the engine, in mode `cd`: children listed, scored and selected

Hugging Face's decoder attends to a context as wide as itself; its weights are random, like ours.
Both sides of a step are given the same float32 logits and beams, and leave the same kind of beams.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from grace.bench.gpu.agreement import require_close, require_equal, require_overlap
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.clock import captured, sustained, timed_on_host
from grace.bench.gpu.decoder_call import DecoderCall
from grace.bench.gpu.found import (
    LEAST_OVERLAP,
    Found,
    free_slot,
    overlap,
    plain_found,
    plain_found_freely,
)
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.recorded import RecordedStep, record
from grace.bench.gpu.replay import give_memory_back
from grace.bench.gpu.results import Row
from grace.bench.gpu.rotation import DecoderBatch
from grace.bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from grace.bench.rungs.hf_t5 import (
    AllowedTokens,
    HfModel,
    allowed_by_trie,
    hf_decoder,
    hf_generate,
    plain_generate,
    shared_sequences,
)
from grace.bench.rungs.static_mask import (
    KeptBeams,
    StaticIndex,
    StaticStep,
    static_beams,
    static_index,
    static_log_probabilities,
    static_step,
)
from grace.configs.generation import BeamProfile
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, AdmissionSlot, Beams, DecodeIndex, admission_slot, load_ops
from grace.model.engine.decode_weights import PRECISIONS

__all__ = ["check_kept", "check_static_mask", "measure_others"]

_BEAMS = (16, 64, 256, 512, 1024)
_PREFIX_BEAMS = (16, 64, 256)  # beyond, a call takes many seconds
_TINY_BEAMS = (2, 4)
_ROUNDS = 4  # of one step in a run, so that it is long enough to be launched ahead
_LEAST_OF_A_STEP = 0.999  # of its nodes: the same float32 logits, summed in another order


@torch.inference_mode()
def measure_others(options: BenchOptions) -> Iterator[Row]:
    subject, parts = subject_of(options), options.wanted()
    dtype = PRECISIONS[options.precisions[0]]
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot_to_decode()
    if "ours" in parts or "static" in parts:
        model = random_decoder_alone(subject.spec, options.device)
        engine = engine_of(subject, model, load_ops(options.device), dtype)
        index = DecodeIndex.of(snapshot, options.device).without_matchers()
        if "ours" in parts:
            yield from _ours(options, subject, engine, catalogue, snapshot, index)
        if "static" in parts:
            yield from _static(options, subject, engine, catalogue, snapshot, index)
        del model, engine, index
    if "hf" in parts:
        yield from _hf(options, subject, "hf", _BEAMS, None)
    if "prefix" in parts:
        yield from _hf(options, subject, "hf prefix", _PREFIX_BEAMS, allowed_by_trie(snapshot.trie))


def _hf(
    options: BenchOptions, subject: Subject, name: str, beams: tuple[int, ...],
    allowed: AllowedTokens | None,
) -> Iterator[Row]:  # fmt: skip
    spec, dtype = subject.spec.decoder, PRECISIONS[options.precisions[0]]
    model = hf_decoder(spec, subject.spec.vocab_sizes, options.device, dtype, seed=1)
    shape = (subject.batch, subject.spec.context_tokens, spec.d_model)
    states = torch.randn(shape, device=options.device).to(dtype)
    for width in _TINY_BEAMS if options.tiny else beams:
        call = partial(_generate, model, states, width, subject.spec.sid_length, allowed)
        row: Row = {"measure": "generate", "variant": name, "beams": width}
        row["seconds"] = options.seconds
        try:
            expected = plain_generate(model, states, width, subject.spec.sid_length, allowed)
            share = shared_sequences(call(), expected, width)
            require_overlap(f"{name}, {width} beams", share, LEAST_OVERLAP[options.precisions[0]])
            del expected
            give_memory_back(options.device)
            if options.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(options.device)
            timing = timed_on_host(call, options.device, options.seconds)
        except torch.cuda.OutOfMemoryError:
            yield {**row, "unavailable": "out of memory"}
            break
        if options.device.type == "cuda":
            row["peak_gb"] = round(torch.cuda.max_memory_allocated(options.device) / 1e9, 1)
        yield {**row, **timing.row()}


def _generate(
    model: HfModel, states: Tensor, beams: int, length: int, allowed: AllowedTokens | None
) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it will call its options next year
        return hf_generate(model, states, beams, length, allowed)


def _ours(
    options: BenchOptions, subject: Subject, engine: Engine, catalogue: Catalogue,
    snapshot: Snapshot, index: DecodeIndex,
) -> Iterator[Row]:  # fmt: skip
    context = contexts_of(subject, options.device, engine.weights.dtype, 1)[0]
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    batch = [DecoderBatch(context, users)]
    decoder, length = engine.plain.decoder, subject.spec.sid_length
    for width in _TINY_BEAMS if options.tiny else _BEAMS:
        profile = BeamProfile((1, *[width] * (length - 1)), width)
        free = DecoderCall(engine, batch, free_slot(engine), None, profile)
        bound = DecoderCall(engine, batch, admission_slot(engine.ops), index, profile)
        for name, call, expected in (
            ("ours, D0", free, plain_found_freely(decoder, context, profile)),
            ("ours, D1", bound, plain_found(decoder, context, users, index, profile)),
        ):
            call.check(f"{name}, {width} beams", [expected], options.precisions[0])
            timing = timed_on_host(call, options.device, options.seconds)
            row = {"measure": "generate", "variant": name, "beams": width}
            yield row | {"seconds": options.seconds, **timing.row()}


def _static(
    options: BenchOptions, subject: Subject, engine: Engine, catalogue: Catalogue,
    snapshot: Snapshot, index: DecodeIndex,
) -> Iterator[Row]:  # fmt: skip
    """Each step alone, for the beams that a generation in mode `cd` has."""
    context = contexts_of(subject, options.device, engine.weights.dtype, 1)[0]
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    slot = admission_slot(engine.ops)
    slot.point_at(users, index)
    steps = record(engine, context, slot, subject.dynamic)
    static = static_index(index)
    on_gpu = options.device.type == "cuda"
    compiled = torch.compile(static_beams, dynamic=False) if on_gpu else static_beams
    for number, step in enumerate(steps):
        given = _static_step(step, index)
        check_static_mask(static, number, step, given)
        calls: dict[str, Callable[[], KeptBeams]] = {
            "static eager": partial(static_beams, static, number, given, step.kept, step.ordered),
            "static compiled": partial(compiled, static, number, given, step.kept, step.ordered),
            "ours, cd": partial(_our_step, engine, slot, step),
        }
        defined = REFERENCE.select_beams(
            step.logits, step.scores, step.candidates, step.kept, step.ordered, step.row_scale
        )
        for name, call in calls.items():
            run = captured([call] * _ROUNDS, options.device)
            for kept in run():
                check_kept(f"step {number}, {name}", kept, defined, index)
            timing = sustained(run, options.device, options.seconds, calls=_ROUNDS)
            row = {"measure": "step", "variant": name, "step": number}
            rows = step.nodes.numel()
            yield row | {"beams": rows, "seconds": options.seconds, **timing.row()}


def _our_step(engine: Engine, slot: AdmissionSlot, step: RecordedStep) -> KeptBeams:
    candidates = slot.admit_children(step.nodes)
    beams = engine.ops.select_beams(
        step.logits, step.scores, candidates, step.kept, step.ordered, step.row_scale
    )
    return KeptBeams(beams.parents, beams.tokens, beams.nodes, beams.scores)


def _static_step(step: RecordedStep, index: DecodeIndex) -> StaticStep:
    """What both sides are given; a dead beam stands at the root, with a score that keeps it out."""
    nodes = step.nodes.flatten().clamp(min=0)
    tokens = index.csr_tokens[(nodes - 1).clamp(min=0).long()].long()
    return StaticStep(step.logits, step.row_scale, step.scores, tokens, nodes)


def check_static_mask(
    static: StaticIndex, number: int, step: RecordedStep, given: StaticStep
) -> None:
    """The tokens that it lets live, and the nodes they lead to, are those the engine admits."""
    masked, onward = static_step(
        static, number, static_log_probabilities(static, given), given.tokens, given.nodes
    )
    live = step.nodes.flatten() != NO_NODE
    alive = (masked > -torch.inf) & live[:, None]
    packed = step.candidates.packed()
    rows = torch.arange(len(live), device=live.device).repeat_interleave(packed.offsets.diff())
    at = alive.nonzero()
    require_equal("STATIC's mask, rows", at[:, 0], rows)
    require_equal("STATIC's mask, tokens", at[:, 1], packed.tokens.long())
    require_equal("STATIC's mask, nodes", onward[alive], packed.nodes)


def check_kept(what: str, got: KeptBeams, expected: Beams, index: DecodeIndex) -> None:
    """Scores as defined, tokens and nodes that belong together, and the nodes that are defined but
    for near-ties."""
    scores, defined = (x.sort(dim=1)[0].clamp(min=-1e4) for x in (got.scores, expected.scores))
    require_close(f"{what}, scores", scores, defined)
    live = got.scores > -torch.inf
    nodes = got.nodes.masked_fill(~live, NO_NODE)
    leading = index.csr_tokens[(nodes[live] - 1).long()].long()
    require_equal(f"{what}, tokens", got.tokens[live].long(), leading)
    none = torch.zeros(len(nodes), dtype=torch.bool, device=nodes.device)
    share = overlap(Found(nodes, got.scores, none), Found(expected.nodes, expected.scores, none))
    require_overlap(f"{what}, nodes", share, _LEAST_OF_A_STEP)
