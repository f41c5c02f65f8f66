"""`grace bench ladder`: the paper's ladder, the decoder alone and the whole path, rung by rung.

L0 to L3 are what the engine replaced (bench/rungs), L4 is the engine with the same fixed beams, D0
to D3 with the paper's dynamic ones: no constraints, the catalogue, bitmasks, bitmasks and Bloom. D4
is D1 with exact eligibility: `decoder` begins when the masks of all nodes are made, `full` makes
them.
L0 spreads keys and values of cross-attention to beam rows once per generation and keeps them, 52 GB
in half precision. Every rung is a CUDA graph; its memory is freed before the next. In fp8 there are
only L4 and D0 to D4.

Four batches take turns. What is timed is what was compared: for each batch the recorded graph's
SIDs, those of the whole path, and the ads in its replies (reply_check.py). The contexts are what
the encoder's definition makes, in float32, of the requests that the whole path answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from grace.bench.gpu.gtm import index_in_mode
from grace.bench.gpu.instruments.measure import free_memory, sustained, timed_on_host
from grace.bench.gpu.subjects import full_path
from grace.bench.gpu.subjects import search as searches
from grace.bench.gpu.subjects.attention_kernels import best_tile, distinct_table, self_inputs
from grace.bench.gpu.subjects.workload import BATCHES, Engine, Workload, random_weights
from grace.bench.result_file import Row
from grace.bench.rungs import dense_search as dense
from grace.bench.rungs.coalesced_triton import DEFAULT_TILE, Tile
from grace.configs.eligibility import MatcherMode
from grace.kernels import DecodeIndex
from grace.model.checkpoints.model_cost import decoder_flops
from grace.model.definition.inputs import UserContext
from grace.model.engine.precision import PRECISIONS, Precision
from grace.server.messages import Retrieval

PEAK_FLOPS = 989e12
_MODES = {"D1": "cd", "D2": "bitmask", "D3": "union", "D4": "exact"}


@dataclass(frozen=True)
class _Setting:
    """What all rungs of one precision share; `expected` results by the search that defines them."""

    work: Workload
    engine: Engine
    loaded: Mapping[MatcherMode, full_path.LoadedSnapshot]
    around: full_path.Surroundings
    precision: Precision
    requests: Sequence[Sequence[Retrieval]]
    batches: Mapping[MatcherMode, Sequence[searches.DecoderBatch]]
    expected: dict[str, list[searches.SearchResult]] = field(default_factory=dict)

    def search(self, name: str) -> searches.Search:
        if name in dense.DENSE_RUNGS:
            return _dense_search(self.work, dense.DENSE_RUNGS[name], self.engine)
        profile = self.work.fixed if name == "L4" else self.work.dynamic
        return searches.engine_search(self.engine, profile, self._index(name))

    def expected_of(self, name: str) -> list[searches.SearchResult]:
        """Return each batch's result in float32, by definition, equal for unconstrained rungs."""
        index, decoder = self._index(name), self.engine.plain.decoder
        kind = name if index else name[0]
        profile = self.work.fixed if kind == "L" else self.work.dynamic
        if kind not in self.expected:
            self.expected[kind] = [
                searches.plain_result(decoder, batch, index, profile)
                if index
                else searches.unconstrained_result(decoder, batch.context, profile)
                for batch in self.batches[snapshot_mode(name)]
            ]
        return self.expected[kind]

    def _index(self, name: str) -> DecodeIndex | None:
        index = self.loaded[snapshot_mode(name)].index
        return index_in_mode(_MODES[name], index) if name in _MODES else None


def snapshot_mode(rung: str) -> MatcherMode:
    """Return the mode of the snapshot that the rung searches, or that its users are encoded for."""
    return MatcherMode.EXACT if _MODES.get(rung) == "exact" else MatcherMode.UNION


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    rungs, options = work.options.parts(), work.options
    catalogue = work.catalogue()
    modes = dict.fromkeys(map(snapshot_mode, rungs))
    loaded = {
        mode: full_path.LoadedSnapshot.of(catalogue.snapshot(mode), work.device) for mode in modes
    }
    users = {
        mode: catalogue.users(loaded[mode].snapshot, work.device, BATCHES, work.batch)
        for mode in modes
    }
    requests = full_path.path_requests(work, catalogue, BATCHES)
    for precision in options.precisions:
        dtype = PRECISIONS[precision]
        engine = work.engine(random_weights(work.spec, work.device, features=dtype), precision)
        around = full_path.Surroundings(work, engine, precision)
        contexts = [around.plain_context(asked) for asked in requests]
        for context in contexts:
            dense.require_full_contexts(context)
        batches = {
            mode: [
                searches.DecoderBatch(*each)
                for each in zip(
                    contexts,
                    searches.eligible_users(users[mode], own.index, engine.ops),
                    strict=True,
                )
            ]
            for mode, own in loaded.items()
        }
        setting = _Setting(work, engine, loaded, around, precision, requests, batches)
        for name in rungs:
            if precision == "fp8" and name in dense.DENSE_RUNGS:
                continue  # what the engine replaced has no products in fp8
            yield _rung(setting, name)
            free_memory(work.device)


def _rung(setting: _Setting, name: str) -> Row:
    work, precision = setting.work, setting.precision
    seconds = work.options.seconds
    expected = setting.expected_of(name)
    search, batches = setting.search(name), setting.batches[snapshot_mode(name)]
    graph = searches.DecoderGraph(work, search, batches, setting.engine.weights.dtype)
    share = graph.check(name, expected, precision)
    decoder = sustained(graph, work.device, seconds, before=graph.take_next)
    del graph
    loaded = setting.loaded[snapshot_mode(name)]
    path = full_path.FullPath(setting.around, loaded, search, setting.requests, batches[0].users)
    full_share = full_path.check_full_path(name, path, expected, precision)
    full = timed_on_host(path, work.device, seconds)
    stages = {f"{s.stage}_ms": round((s.end - s.begin) * 1e3, 3) for s in path.spans}
    return {
        "rung": name,
        "precision": precision,
        "decoder_p50_ms": round(decoder.p50_ms, 3),
        "decoder_p99_ms": round(decoder.p99_ms, 3),
        "full_p50_ms": round(full.p50_ms, 3),
        "full_p99_ms": round(full.p99_ms, 3),
        "mfu": round(mfu(work, search.profile.beams, decoder.mean_ms), 4),
        "sm_clock_mhz": decoder.draw.sm_clock_mhz,
        "power_w": decoder.draw.power_w,
        "decoder_mean_ms": round(decoder.mean_ms, 3),
        "decoder_runs": decoder.runs,
        "full_runs": full.runs,
        "batches": len(batches),
        "last_full": stages,
        "overlap_with_fp32": round(share, 4),
        "full_overlap_with_fp32": round(full_share, 4),
    }


def mfu(work: Workload, beams: Sequence[int], mean_ms: float) -> float:
    """The paper's: a request's operations times the batch, at 989 TFLOP/s in any precision."""
    flops = decoder_flops(work.spec, beams) * work.batch
    return flops / (mean_ms / 1e3 * PEAK_FLOPS)


def _dense_search(work: Workload, rung: dense.Rung, engine: Engine) -> searches.Search:
    weights, plain = engine.weights, engine.plain.decoder
    own = dense.RungDecoder.of(plain, weights.device, weights.dtype)
    pieces = dense.compiled_pieces() if work.on_gpu else dense.PLAIN
    if work.on_gpu and rung.name in ("L2", "L3"):
        rung = replace(rung, tiles=_tiles(work, weights.dtype, rung.fused))

    def run(context: UserContext) -> searches.TracedResult:
        found = dense.dense_search(own, context.states, work.fixed, rung, pieces)
        return searches.TracedResult(searches.result_of_sids(*found, plain))

    return searches.Search(
        work.fixed, run, lambda traced: traced.result, lambda users: None, constrained=False
    )


def _tiles(work: Workload, dtype: torch.dtype, fused: bool) -> tuple[Tile, ...]:
    rows = work.batch * work.fixed.beams[-1]
    tiles = [DEFAULT_TILE]  # for the one row per request at step 0
    for step in range(1, work.spec.sid_length):
        table = distinct_table(work, rows, step)
        tiles.append(best_tile(work, self_inputs(work, table, dtype), fused=fused))
    return tuple(tiles)
