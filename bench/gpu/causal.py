"""`grace bench causal`: decoder-only models of the Qwen3 kind, with random weights.

1.7B, 0.6B       a whole batch: its prompts are placed and read, beams searched, SIDs copied back;
                 `longest` prompts, and prompts of `uniform` lengths, which are padded to buckets
1.7B:level       the same, with probabilities among the tokens of a level
products:...     the products and operations of a layer alone (causal_parts.py)
overlap          the share of float32's SIDs that bf16 finds, and fp8, also with a product in bf16

Before anything is timed, a small model finds the SIDs of the plain definition, and every batch has
the same bits from the graphs as from the operations one by one. Several batches take turns.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, product

import torch
from torch import Tensor

from grace.bench.gpu.causal_parts import layer_parts
from grace.bench.gpu.instruments.measure import free_memory, require_equal, sustained
from grace.bench.gpu.overlap import Tally
from grace.bench.gpu.subjects.causal_model import Shape, random_causal, random_prompts
from grace.bench.gpu.subjects.search import SearchResult, check_result
from grace.bench.gpu.subjects.workload import BATCHES, Workload
from grace.bench.result_file import Row
from grace.configs.options import Fp8Product, Normalizer
from grace.kernels import REFERENCE, admission_slot
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.inputs import Prompts, map_tensors
from grace.model.engine.causal.generation import CausalGeneration, token_buckets
from grace.model.engine.feature_stage import PlacedPrompts
from grace.model.engine.generation import EngineSettings, Generation, SearchTask
from grace.model.engine.graph_generation import GraphGeneration
from grace.model.engine.precision import Precision

MODELS = "1.7B", "0.6B"
_MIXED_BATCHES = 16  # of prompts of uniform lengths
_OVERLAP_BATCHES, _OVERLAP_BATCH = 8, 4
_KEPT: tuple[tuple[Fp8Product, ...], ...] = ((), ("feed_forward",), ("qkv",), ("self_out",))


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    parts = work.options.parts()
    for precision in work.options.precisions:
        if any(part.partition(":")[0] in MODELS for part in parts):
            yield agreement(work, precision)
        for part in parts:
            free_memory(work.device)
            kind, _, name = part.partition(":")
            if kind == "products":
                shape = shape_of(work, name)
                yield from layer_parts(work, shape, precision, shape.index(work.device))
            elif kind in MODELS:
                yield from whole(work, shape_of(work, kind), "level" if name else "all", precision)
    if "overlap" in parts:
        free_memory(work.device)
        yield agreement(work, "fp32")
        yield from _overlap(work, shape_of(work, "1.7B", sids=1_000_000))


def shape_of(work: Workload, name: str, sids: int = 3_000_000) -> Shape:
    asked = work.options.sids[0] if work.options.sids else sids
    return replace(Shape.of("small" if work.options.tiny else name), name=name, sids=asked)


def _recorded(work: Workload, engine: CausalGeneration, shape: Shape) -> Generation:
    """Record the engine's graphs. A CPU has none, so there the engine itself generates."""
    if not work.on_gpu:
        return engine
    return GraphGeneration(engine, None, shape.batches, [shape.profile])


def _generated(
    work: Workload, generation: Generation, prompts: PlacedPrompts, task: SearchTask
) -> Generated:
    found = generation.generate(prompts, task)
    if work.on_gpu:
        torch.cuda.synchronize(work.device)
    found.require_finite()
    return found


def agreement(work: Workload, precision: Precision) -> Row:
    """Compare a small model's SIDs with those of the plain definition in float32."""
    shape = shape_of(work, "small", sids=20_000)
    spec, batch = shape.spec, max(shape.batches)
    model, ops = random_causal(spec, work.device), work.load_ops(work.device)
    engine = CausalGeneration(model, ops, EngineSettings(precision, 0), shape.config)
    prompts = random_prompts(spec, batch, "uniform", 0, work.device)
    task = shape.task(batch, shape.index(work.device))
    got = _generated(work, _recorded(work, engine, shape), prompts, task)
    context = Prompts(prompts.offsets, prompts.values.long())
    plain = beam_search(model.decoder, context, task.users, task.index, task.profile, REFERENCE)
    found, expected = (
        SearchResult(each.leaves, each.scores, each.corrupt)
        for each in (got, map_tensors(plain, Tensor.cpu))
    )
    share = check_result("the small causal model", found, expected, precision)
    return {"measure": "agreement", "precision": precision, "overlap": round(share, 4)}


def whole(
    work: Workload, shape: Shape, normalizer: Normalizer, precision: Precision
) -> Iterator[Row]:
    spec, settings = replace(shape.spec, normalizer=normalizer), EngineSettings(precision, 0)
    ops, buckets = work.load_ops(work.device), token_buckets(shape.config, spec.prompt.max_tokens)
    engine = CausalGeneration(random_causal(spec, work.device), ops, settings, shape.config)
    generation, index = _recorded(work, engine, shape), shape.index(work.device)
    kinds = {"longest": BATCHES, "uniform": BATCHES if work.options.tiny else _MIXED_BATCHES}
    for batch, kind in product(shape.batches, kinds):
        if (kind, normalizer) == ("uniform", "level"):
            continue
        task = shape.task(batch, index)
        seeds = range(kinds[kind])
        prompts = [random_prompts(spec, batch, kind, seed, work.device) for seed in seeds]
        for each in prompts:
            found = [_generated(work, x, each, task).packed() for x in (generation, engine)]
            require_equal("the recorded search", *found)
        turns = map(partial(generation.generate, task=task), cycle(prompts))
        timing = sustained(partial(next, turns), work.device, work.options.seconds)
        tokens = sum(each.total for each in prompts)
        rows = sum(next(size for size in buckets if size >= each.total) for each in prompts)
        yield {
            "measure": "whole",
            "variant": shape.name,
            "mode": normalizer,
            "kind": kind,
            "precision": precision,
            "batch": batch,
            "tokens": tokens / len(prompts),
            "padding": round(1 - tokens / rows, 4),
            **timing.row(),
            "requests_per_s": round(batch / timing.mean_ms * 1e3, 1),
            **(_halves(work, engine, prompts[0], task) if kind == "longest" else {}),
        }


def _halves(
    work: Workload, engine: CausalGeneration, prompts: PlacedPrompts, task: SearchTask
) -> dict[str, float | None]:
    """Time reading alone, with the placing, and searching alone. A CPU cannot read alone."""
    batch, device, seconds = len(prompts), work.device, work.options.seconds
    reading, slot = None, admission_slot(engine.ops)
    if work.on_gpu:
        reading = sustained(lambda: engine.place(batch, prompts), device, seconds).p50_ms
    slot.point_at(task.users, task.index)
    search = work.record(lambda: engine.search(batch, slot, task.profile))
    return {"read_p50_ms": reading, "search_p50_ms": sustained(search, device, seconds).p50_ms}


def _overlap(work: Workload, shape: Shape) -> Iterator[Row]:
    device, spec = work.device, shape.spec
    model, ops = random_causal(spec, device), work.load_ops(device)
    batches, batch = (2, 3) if work.options.tiny else (_OVERLAP_BATCHES, _OVERLAP_BATCH)
    index = shape.index(device)
    task = shape.task(batch, index)
    prompts = [random_prompts(spec, batch, "longest", seed, device) for seed in range(batches)]

    def found(precision: Precision, kept: tuple[Fp8Product, ...] = ()) -> list[Tensor]:
        settings = EngineSettings(precision, 0, kept)
        engine = CausalGeneration(model, ops, settings, replace(shape.config, max_batch=batch))
        leaves = [_generated(work, engine, each, task).leaves for each in prompts]
        del engine
        free_memory(device)
        return leaves

    expected = found("fp32")
    for precision in work.options.precisions:
        for kept in _KEPT if precision == "fp8" else _KEPT[:1]:
            tally = Tally()
            for got, wanted in zip(found(precision, kept), expected, strict=True):
                tally.add([got], [wanted])
            yield {
                "measure": "overlap",
                "variant": shape.name,
                "precision": precision,
                "kept": ", ".join(kept),
                **tally.row(batches * batch, index),
            }
