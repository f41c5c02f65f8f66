"""`grace serve` on the GPU, loaded through gRPC by another process of the same host.

load        latencies and outcomes at offered rates, Poisson arrivals; D3, users of the catalogue
idle        one request at a time, seconds apart
saturation  a closed loop: how busy `generate` is, by the GPU's clock, when there is always work;
            its timeline is written beside the result, as a Chrome trace and an SVG of a window
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from bench.gpu.lanes import draw_lanes
from bench.gpu.options import BenchOptions
from bench.gpu.requests import full_requests
from bench.gpu.results import Row
from bench.gpu.subject import Subject, make_catalogue, random_weights, subject_of
from bench.load.client import ClosedLoop, Load, OpenLoop
from bench.load.client_process import run_in_a_process
from bench.load.timeline import busy_share, read_timeline, window, write_window
from bench.running_server import GRACE_SERVE, RunningServer, write_server_config
from index.matchers import MatcherMode
from index.storage import publish, write_snapshot
from model.checkpoint import save_checkpoint
from model.fast_weights import PRECISIONS, Precision
from model.model import Model

__all__ = ["measure_serve", "saturation_row"]

PARTS = ("load", "idle", "saturation")
RATES = (200.0, 400.0, 800.0, 1000.0, 1200.0, 1400.0)
REQUESTS = 1024
_TINY_RATES = (20.0,)
_TINY_REQUESTS = 16
_WARM_UP_REQUESTS = 16
_IDLE_RATE = 4.0
_IDLE_SECONDS = 15.0
_START_SECONDS = 300.0  # the paper's catalogue and model are gigabytes to load
_IN_FLIGHT = 64  # four full batches: the line is never empty
_EDGE_SHARE = 0.1  # of a run, at either end: not yet or no longer steady
_WINDOW_SECONDS = 0.2
_POST_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path
    snapshots: Path
    checkpoint: Path
    profiles: Path
    requests: Path
    warm_up: Path


def measure_serve(options: BenchOptions) -> Iterator[Row]:
    subject, parts = subject_of(options), options.wanted(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        files = _written(options, subject, Path(folder))
        for precision in options.precisions:
            yield from _of_precision(options, files, precision, parts)


def _of_precision(
    options: BenchOptions, files: _Files, precision: Precision, parts: tuple[str, ...]
) -> Iterator[Row]:
    config = write_server_config(
        files.folder / f"{precision}.yaml",
        files.snapshots,
        files.checkpoint,
        files.profiles,
        warm_up=str(files.warm_up),
        device=str(options.device),
        precision=precision,
        threads={"post": _POST_THREADS},
    )
    trace = files.folder / f"{precision}.trace.json"
    command = (*GRACE_SERVE, "--config", config, "--timeline", trace)
    with RunningServer(command, files.folder / f"{precision}.log", _START_SECONDS) as server:
        if "idle" in parts:
            seconds = min(_IDLE_SECONDS, 5 * options.seconds)
            yield _load_row("idle", precision, server, files, OpenLoop(_IDLE_RATE, seconds))
        if "load" in parts:
            for rate in options.rates or (_TINY_RATES if options.tiny else RATES):
                load = OpenLoop(rate, options.seconds)
                yield _load_row("load", precision, server, files, load)
    if "saturation" in parts:
        log = files.folder / f"{precision}.full.log"
        with RunningServer(command, log, _START_SECONDS) as server:
            result = _client(server, files, ClosedLoop(_IN_FLIGHT, options.seconds))
        yield saturation_row(options, precision, trace, result)


def _written(options: BenchOptions, subject: Subject, folder: Path) -> _Files:
    catalogue = make_catalogue(options.sids[0] if options.sids else subject.default_sids)
    snapshots, checkpoint = folder / "snapshots", folder / "checkpoint"
    snapshots.mkdir()
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    write_snapshot(snapshot, snapshots)
    publish(snapshots, snapshot.facts.version)
    spec = replace(subject.spec, sid_space=snapshot.facts.sid_space)
    save_checkpoint(_half(random_weights(spec, options.device)), checkpoint)
    users = catalogue.attributes(0, _TINY_REQUESTS if options.tiny else REQUESTS)
    lines = [json.dumps(request) for request in full_requests(spec, users, seed=1)]
    requests, warm_up = folder / "requests.jsonl", folder / "warm-up.jsonl"
    requests.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    head = lines[:_WARM_UP_REQUESTS]
    warm_up.write_text("".join(f"{line}\n" for line in head), encoding="utf-8")
    profiles = folder / "profiles.yaml"
    profiles.write_text(yaml.safe_dump({"generation": _generation(subject)}), encoding="utf-8")
    return _Files(folder, snapshots, checkpoint, profiles, requests, warm_up)


def _generation(subject: Subject) -> dict[str, Any]:
    full = subject.dynamic
    return {
        "max_batch": subject.batch,
        "default_profile": "full",
        "profiles": {"full": {"beams": list(full.beams), "num_sids": full.num_sids}},
    }


def _half(model: Model) -> Model:
    """As checkpoints hold it: the tables are gigabytes."""
    return model.to(torch.device("cpu"), PRECISIONS["bf16"])


def _load_row(
    measure: str, precision: Precision, server: RunningServer, files: _Files, load: OpenLoop
) -> Row:
    result = _client(server, files, load)
    own = result["grace"]
    latency = own["ms"]["latency_ok"] or {"p50": None, "p99": None}
    return {
        "measure": measure,
        "precision": precision,
        "rps": load.rate,
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "errors": own["failed"],
        "answered_rps": round(own["ok"] / result["total"] * 1e9, 1),
        "valid": own["valid"],
        "stages_p50_ms": {
            name: own["ms"][name] and own["ms"][name]["p50"]
            for name in ("queue", "input", "features", "generate", "post", "overhead")
        },
    }


def saturation_row(
    options: BenchOptions, precision: Precision, trace: Path, result: dict[str, Any]
) -> Row:
    slices = read_timeline(trace)
    first, last = slices[0].begin, slices[-1].end
    edge = (last - first) * _EDGE_SHARE
    begin, end = first + edge, last - edge
    generate = [part for part in window(slices, begin, end) if part.stage == "generate"]
    busy = busy_share(slices, "generate", begin, end)
    if options.out is not None:
        middle = (begin + end) / 2
        shown = window(slices, middle, middle + _WINDOW_SECONDS)
        write_window(trace, shown, options.out.with_name(f"{options.out.stem}_timeline.json"))
        title = f"{_WINDOW_SECONDS * 1e3:.0f} ms at saturation, {precision}: generate {busy:.1%}"
        picture = options.out.with_name(f"{options.out.stem}_timeline.svg")
        lanes = draw_lanes(shown, middle, middle + _WINDOW_SECONDS, title)
        picture.write_text(lanes, encoding="utf-8")
    return {
        "measure": "saturation",
        "precision": precision,
        "rps": round(result["grace"]["ok"] / result["total"] * 1e9, 1),
        "p50_ms": result["grace"]["ms"]["latency_ok"]["p50"],
        "p99_ms": result["grace"]["ms"]["latency_ok"]["p99"],
        "errors": result["grace"]["failed"],
        "in_flight": _IN_FLIGHT,
        "batches": len(generate),
        "mean_batch": round(sum(part.requests for part in generate) / max(1, len(generate)), 2),
        "generate_busy": round(busy, 4),
    }


def _client(server: RunningServer, files: _Files, load: Load) -> dict[str, Any]:
    return run_in_a_process(server.address, files.requests, load, files.folder / "result.json")
