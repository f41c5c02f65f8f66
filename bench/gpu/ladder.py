"""The paper's ladder: the decoder alone and the whole path, rung by rung, batch 16.

L0 to L3 are what the engine replaced (bench/rungs), L4 is the engine with the same fixed beams, D0
to D3 with the paper's dynamic ones: no constraints, the catalogue, bitmasks, bitmasks and Bloom.
L0 spreads keys and values of cross-attention to beam rows once per generation and keeps them, 52 GB
in half precision. Every rung is a CUDA graph; what one held is given back before the next.

Four batches take turns. What is timed is what was compared: for each batch the recorded graph's
SIDs, those of the full way, and the ads in its replies (full_check.py). Contexts are the encoder's,
by its definition in float32, of the requests that the full way answers.

MFU is the paper's: operations of a request (model.flops) times the batch, over the decoder's mean
time and the GPU's 989 TFLOP/s, whatever the precision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean

import torch

from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.clock import sustained, timed_on_host
from grace.bench.gpu.found import Found, TracedFound, check_found
from grace.bench.gpu.full_check import check_full
from grace.bench.gpu.full_path import FullPath, Surroundings, measured_requests
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.replay import Replay, give_memory_back
from grace.bench.gpu.results import Row
from grace.bench.gpu.rotation import BATCHES, DecoderBatch, Rotation
from grace.bench.gpu.rung_runs import RungRun, definition_of, expected_of, run_of
from grace.bench.gpu.subject import Engine, Subject, engine_of, random_weights, subject_of
from grace.index.matchers.modes import MatcherMode
from grace.kernels import DecodeIndex, load_ops
from grace.model.checkpoints.model_cost import decoder_flops
from grace.model.engine.decode_weights import PRECISIONS, Precision
from grace.server.messages import Retrieval

__all__ = ["PEAK_FLOPS", "measure_ladder"]

PEAK_FLOPS = 989e12


@dataclass(frozen=True)
class _Setting:
    """What all rungs of one precision share; `expected` of each batch by what defines it."""

    subject: Subject
    engine: Engine
    index: DecodeIndex
    around: Surroundings
    precision: Precision
    requests: Sequence[Sequence[Retrieval]]
    batches: Sequence[DecoderBatch]
    expected: dict[str, list[Found]] = field(default_factory=dict)

    def expected_of(self, name: str) -> list[Found]:
        definition = definition_of(name)
        if definition not in self.expected:
            self.expected[definition] = [
                expected_of(name, self.subject, self.engine, self.index, batch)
                for batch in self.batches
            ]
        return self.expected[definition]


@torch.inference_mode()
def measure_ladder(options: BenchOptions) -> Iterator[Row]:
    subject, rungs = subject_of(options), options.wanted()
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, options.device)
    users = catalogue.users(snapshot, options.device, BATCHES, subject.batch)
    requests = measured_requests(subject, catalogue, BATCHES)
    for precision in options.precisions:
        dtype = PRECISIONS[precision]
        model = random_weights(subject.spec, options.device, features=dtype)
        engine = engine_of(subject, model, load_ops(options.device), dtype)
        around = Surroundings(subject, engine, snapshot, index, precision)
        batches = [
            DecoderBatch(around.plain_context(asked), own)
            for asked, own in zip(requests, users, strict=True)
        ]
        setting = _Setting(subject, engine, index, around, precision, requests, batches)
        for name in rungs:
            yield _measure(options, setting, name)
            give_memory_back(options.device)


def _measure(options: BenchOptions, setting: _Setting, name: str) -> Row:
    subject, device = setting.subject, options.device
    expected = setting.expected_of(name)
    run = run_of(name, subject, setting.engine, setting.index)
    rotation = Rotation(setting.batches, setting.engine.weights.dtype, run.point_at)
    search = Replay(lambda: run.search(rotation.context), device)
    share = _check(setting, run, rotation, search, expected)
    decoder = sustained(search, device, options.seconds, before=rotation)
    del search
    pair, generation = setting.around.pair(run, setting.batches[0].users)
    path = FullPath(pair, run, setting.requests)
    full_share = check_full(path, generation, expected, setting.precision)
    full = timed_on_host(path, device, options.seconds)
    stages = {f"{s.stage}_ms": round((s.end - s.begin) * 1e3, 3) for s in path.spans}
    flops = decoder_flops(subject.spec, run.profile.beams) * subject.batch
    return {
        "rung": name,
        "precision": setting.precision,
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
        "batches": len(setting.batches),
        "last_full": stages,
        "overlap_with_fp32": round(share, 4),
        "full_overlap_with_fp32": round(full_share, 4),
    }


def _check(
    setting: _Setting,
    run: RungRun,
    rotation: Rotation,
    search: Replay[TracedFound],
    expected: Sequence[Found],
) -> float:
    """How many of the SIDs that the graph finds are those of float32, over all batches."""
    shares = []
    for number, wanted in enumerate(expected):
        rotation.put(number)
        got = run.told(search())
        shares.append(check_found(f"{run.name}, batch {number}", got, wanted, setting.precision))
    return mean(shares)
