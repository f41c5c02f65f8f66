"""The paper's ladder: the decoder alone and the whole path, rung by rung, batch 16.

L0 to L3 are what the engine replaced (bench/rungs), L4 is the engine with the same fixed beams, D0
to D3 with the paper's dynamic ones: no constraints, the catalogue, bitmasks, bitmasks and Bloom.
L0 spreads keys and values of cross-attention to beam rows once per generation and keeps them, 52 GB
in half precision. Every rung is a CUDA graph; what one held is given back before the next.

MFU is the paper's: operations of a request (model.flops) times the batch, over the decoder's mean
time and the GPU's 989 TFLOP/s, whatever the precision.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from bench.gpu.agreement import require_close, require_overlap
from bench.gpu.catalogue import Catalogue
from bench.gpu.clock import sustained, timed_on_host
from bench.gpu.full_path import FullPath, Surroundings, measured_requests
from bench.gpu.options import BenchOptions
from bench.gpu.replay import Replay, give_memory_back
from bench.gpu.results import Row
from bench.gpu.rung_runs import RUNGS, Found, RungRun, definition_of, expected_of, run_of
from bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_weights,
    subject_of,
)
from index.matchers import MatcherMode
from index.trie import NO_NODE
from kernels import DecodeIndex, UserTensors, load_ops
from model.fast_weights import PRECISIONS, Precision
from model.flops import decoder_flops
from model.inputs import UserContext
from server.messages import Retrieval

__all__ = ["PEAK_FLOPS", "measure_ladder", "overlap"]

PEAK_FLOPS = 989e12
LEAST_OVERLAP: dict[Precision, float] = {"fp32": 0.97, "fp16": 0.8, "bf16": 0.7}
"""Of the SIDs with float32's: what rounding may exchange among near-ties at the end of the list."""

_REQUEST_BATCHES = 8


@dataclass(frozen=True)
class _Setting:
    """What all rungs of one precision share; `expected` by what defines it."""

    subject: Subject
    engine: Engine
    index: DecodeIndex
    around: Surroundings
    users: UserTensors
    context: UserContext
    requests: list[list[Retrieval]]
    expected: dict[str, Found] = field(default_factory=dict)


def measure_ladder(options: BenchOptions) -> Iterator[Row]:
    subject, rungs = subject_of(options), options.wanted(RUNGS)
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, options.device)
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    requests = measured_requests(subject, catalogue, _REQUEST_BATCHES)
    for precision in options.precisions:
        dtype = PRECISIONS[precision]
        model = random_weights(subject.spec, options.device, features=dtype)
        engine = engine_of(subject, model, load_ops(options.device), dtype)
        setting = _Setting(
            subject=subject,
            engine=engine,
            index=index,
            around=Surroundings(subject, engine, snapshot, index, precision),
            users=users,
            context=contexts_of(subject, options.device, dtype, 1)[0],
            requests=requests,
        )
        for name in rungs:
            yield _measure(options, setting, name, precision)
            give_memory_back(options.device)


def _measure(options: BenchOptions, setting: _Setting, name: str, precision: Precision) -> Row:
    subject, device = setting.subject, options.device
    run = run_of(name, subject, setting.engine, setting.index)
    share = _check(setting, run, precision)
    decoder = sustained(
        Replay(lambda: run.search(setting.context), device), device, options.seconds
    )
    path = FullPath(setting.around.pair(run, setting.users), run, setting.requests)
    full = timed_on_host(path, device, options.seconds)
    stages = {f"{s.stage}_ms": round((s.end - s.begin) * 1e3, 3) for s in path.spans}
    flops = decoder_flops(subject.spec, run.profile.beams) * subject.batch
    return {
        "rung": name,
        "precision": precision,
        "decoder_p50_ms": round(decoder.p50_ms, 3),
        "decoder_p99_ms": round(decoder.p99_ms, 3),
        "full_p50_ms": round(full.p50_ms, 3),
        "full_p99_ms": round(full.p99_ms, 3),
        "mfu": round(flops / (decoder.mean_ms / 1e3 * PEAK_FLOPS), 4),
        "sm_clock_mhz": decoder.draw.sm_clock_mhz,
        "power_w": decoder.draw.power_w,
        "decoder_mean_ms": round(decoder.mean_ms, 3),
        "decoder_runs": decoder.runs,
        "full_runs": full.runs,
        "last_full": stages,
        "overlap_with_fp32": round(share, 4),
    }


@torch.inference_mode()
def _check(setting: _Setting, run: RungRun, precision: Precision) -> float:
    """How many of the SIDs are those of float32; raises where it is not the same function."""
    run.point_at(setting.users)
    got = run.numbered_search(setting.context)
    definition = definition_of(run.name)
    if definition not in setting.expected:
        setting.expected[definition] = expected_of(
            run.name, setting.subject, setting.engine, setting.index, setting.users,
            setting.context.states,
        )  # fmt: skip
    expected = setting.expected[definition]
    live = expected.scores > -torch.inf
    worst = expected.scores[live].min() - 1.0 if live.any() else torch.tensor(-1.0)
    scores, defined = (x.scores.float().clamp(min=float(worst)) for x in (got, expected))
    require_close(f"{run.name} in {precision}, scores", scores.to(_type_of(precision)), defined)
    share = overlap(got, expected)
    require_overlap(f"{run.name} in {precision}", share, LEAST_OVERLAP[precision])
    return share


def overlap(got: Found, expected: Found) -> float:
    """The share of the expected live SIDs that were found, over all requests; 1 if none is."""
    common = total = 0
    for one, other in zip(got.nodes, expected.nodes, strict=True):
        wanted = other[other != NO_NODE]
        common += int(torch.isin(wanted, one).sum())
        total += len(wanted)
    return common / total if total else 1.0


def _type_of(precision: Precision) -> torch.dtype:
    return PRECISIONS[precision]
