"""What others do, on the same decoder shape, catalogue and GPU, beside the engine in the same run.

hf             Hugging Face T5 `generate`, beams as wide as they survive, everything it launches
hf prefix      the same with `prefix_allowed_tokens_fn` over the catalogue: valid SIDs only
ours, D0       the engine at the same beams, without constraints; D1: with the catalogue
static eager   a step's mask after STATIC's algorithm, in plain torch; static compiled: by torch
ours, cd       the engine's admission of the same step in mode `cd`

Hugging Face's decoder attends to a context as wide as itself; its weights are random, like ours.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.agreement import require_equal
from bench.gpu.catalogue import Catalogue
from bench.gpu.clock import captured, sustained, timed_on_host
from bench.gpu.decoder_call import decoder_call
from bench.gpu.options import BenchOptions
from bench.gpu.recorded import RecordedStep, record
from bench.gpu.results import Row
from bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from bench.rungs.every_token import EveryToken
from bench.rungs.hf_t5 import AllowedTokens, HfModel, allowed_by_trie, hf_decoder, hf_generate
from bench.rungs.static_mask import StaticIndex, static_index, static_step
from configs.generation import BeamProfile
from index.snapshot import Snapshot
from index.trie import NO_NODE
from kernels import AdmissionSlot, DecodeIndex, admission_slot, load_ops
from model.fast_weights import PRECISIONS

__all__ = ["measure_others"]

PARTS = ("hf", "prefix", "ours", "static")
_BEAMS = (16, 64, 256, 512, 1024)
_PREFIX_BEAMS = (16, 64, 256)  # beyond, a call takes many seconds
_TINY_BEAMS = (2, 4)


@torch.inference_mode()
def measure_others(options: BenchOptions) -> Iterator[Row]:
    subject, parts = subject_of(options), options.wanted(PARTS)
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
        if options.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(options.device)
        try:
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
    length = subject.spec.sid_length
    for width in _TINY_BEAMS if options.tiny else _BEAMS:
        profile = BeamProfile((1, *[width] * (length - 1)), width)
        slots: dict[str, AdmissionSlot] = {
            "ours, D0": EveryToken(max(subject.spec.vocab_sizes)),
            "ours, D1": admission_slot(engine.ops),
        }
        for name, slot in slots.items():
            slot.point_at(users, index)
            call = decoder_call(engine, context, slot, profile, options.device)
            timing = timed_on_host(call, options.device, options.seconds)
            yield {"measure": "generate", "variant": name, "beams": width, **timing.row()}


def _static(
    options: BenchOptions, subject: Subject, engine: Engine, catalogue: Catalogue,
    snapshot: Snapshot, index: DecodeIndex,
) -> Iterator[Row]:  # fmt: skip
    """The mask of each step alone, for the beams that a generation in mode `cd` has."""
    context = contexts_of(subject, options.device, engine.weights.dtype, 1)[0]
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    slot = admission_slot(engine.ops)
    slot.point_at(users, index)
    steps = record(engine, context, slot, subject.dynamic)
    static = static_index(index)
    compiled = (
        torch.compile(static_step, dynamic=False) if options.device.type == "cuda" else static_step
    )
    for number, step in enumerate(steps):
        arguments = _static_arguments(step, index)
        _check_static(static, number, step, arguments)
        calls: dict[str, Callable[[], object]] = {
            "static eager": partial(static_step, static, number, *arguments),
            "static compiled": partial(compiled, static, number, *arguments),
            "ours, cd": partial(slot.admit_children, step.nodes),
        }
        for name, call in calls.items():
            run = captured([call] * 4, options.device)
            timing = sustained(run, options.device, options.seconds, calls=4)
            rows = step.nodes.numel()
            yield {
                "measure": "mask", "variant": name, "step": number, "beams": rows, **timing.row()
            }  # fmt: skip


def _static_arguments(step: RecordedStep, index: DecodeIndex) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, last tokens and nodes; a dead beam stands at the root."""
    nodes = step.nodes.flatten().clamp(min=0)
    tokens = index.csr_tokens[(nodes - 1).clamp(min=0).long()].long()
    width = max(index.vocab_sizes)
    return step.logits[:, :width].float().log_softmax(dim=-1), tokens, nodes


def _check_static(
    static: StaticIndex, number: int, step: RecordedStep, arguments: tuple[Tensor, Tensor, Tensor]
) -> None:
    """The tokens that it lets live are those the engine admits."""
    masked, _ = static_step(static, number, *arguments)
    live = step.nodes.flatten() != NO_NODE
    counts = (masked[live] > -torch.inf).sum(dim=1)
    packed = step.candidates.packed()
    require_equal("STATIC's mask", counts, packed.offsets.diff()[live].long())
