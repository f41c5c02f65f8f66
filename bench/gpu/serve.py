"""`grace bench serve`: `grace serve` on the GPU, loaded through gRPC by processes of the same host.

idle        single requests, four a second: the machine falls asleep between them
alone       one request under way: the next one follows the reply at once
load        latencies and outcomes at offered rates, Poisson arrivals, users of the catalogue
saturation  a closed loop: how busy `generate` is, by the GPU's clock, when there is always work;
            a window of its timeline is written next to the result file, as a Chrome trace
swap        a rate twice: alone, and while live loads run back to back; they alternate between two
            versions of the catalogue's size

Each matcher mode has a server for a single caller, which holds the connection itself, one for the
loads, and another one for swap. They have the same requests and checkpoint. Several processes make
the loads: one would be the limit.
`cpu` is each thread's share of a core, for the threads of all the server's processes. Parts are
named measure:mode.
"""

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from google.protobuf.json_format import MessageToJson

from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.subjects.catalogue import FIRST_VERSION, full_requests
from grace.bench.gpu.subjects.workload import Workload, random_weights
from grace.bench.load.client import ClosedLoop, Load, OpenLoop, ServerTimes
from grace.bench.load.client_process import run_in_a_process
from grace.bench.load.prompt_server import prompt_server
from grace.bench.load.shots import WIRE, write_wire
from grace.bench.load.thread_times import ThreadWatch
from grace.bench.load.timeline import (
    busy_share,
    generated_batches,
    read_timeline,
    window,
    write_window,
)
from grace.bench.result_file import Row
from grace.bench.running_server import RunningServer, write_server_config
from grace.client import AdminClient
from grace.configs.errors import CallError
from grace.index.matchers.modes import MatcherMode
from grace.model.checkpoints.checkpoint import save_checkpoint
from grace.model.definition.spec import ModelSpec
from grace.model.engine.decode_weights import PRECISIONS, Precision

_NO_SHEDDING_MS = 600_000.0
"""A closed loop measures how much a server can do, and queues for that."""

RATES = (400.0, 800.0, 1000.0, 1200.0, 1300.0)
FP8_RATES = (400.0, 800.0, 1200.0, 1500.0, 1700.0)
SWAP_RATES = (400.0, 1000.0)
REQUESTS = 1024
_TINY_RATES = (20.0,)
_TINY_REQUESTS = 16
_WARM_UP_REQUESTS = 16
_IDLE_RATE = 4.0
_IDLE_SECONDS = 10.0
_START_SECONDS = 300.0  # the paper's catalogue and model are gigabytes to load
_IN_FLIGHT = 64  # four full batches: the queue is never empty
_SWAP_SECONDS = 10.0  # a load of the paper's catalogue takes seconds
_LOAD_SECONDS = 120.0  # the most that one live load may take
_EDGE_SHARE = 0.1  # of a run, at either end, where it is not steady
_WINDOW_SECONDS = 0.2
_POST_THREADS = 8
_MEMORY_FOLDER = Path("/dev/shm")
_FILES_BYTES = 16 << 30
_ALONE = ("p50_ms", "p99_ms", "errors", "withdrawn", "valid")
_VERSIONS = (FIRST_VERSION, FIRST_VERSION + 1)


class _Files(NamedTuple):
    """`snapshots` are the roots by mode, with two versions where swap is measured."""

    folder: Path
    snapshots: Mapping[MatcherMode, Path]
    checkpoint: Path
    profiles: Path
    requests: Path
    warm_up: Path


class _Processes(NamedTuple):
    """
    front_ends   of the server, which speak gRPC
    clients      that make a load
    connections  of each client
    """

    front_ends: int
    clients: int
    connections: int


_ONE = _Processes(front_ends=0, clients=1, connections=1)
_MANY = _Processes(front_ends=4, clients=6, connections=2)
_TINY = _Processes(front_ends=1, clients=1, connections=2)


def measure(work: Workload) -> Iterator[Row]:
    measures: dict[MatcherMode, list[str]] = {}
    for part in work.options.parts():
        name, _, mode = part.partition(":")
        measures.setdefault(MatcherMode(mode), []).append(name)
    with tempfile.TemporaryDirectory(dir=_roomy_folder()) as folder:
        files = _written(work, Path(folder), measures)
        for precision in work.options.precisions:
            for mode, own in measures.items():
                facts = {"mode": mode.value, "precision": precision}
                for row in _of_mode(work.options, files, mode, precision, own):
                    yield {"measure": row["measure"], **facts, **row}


def _of_mode(
    options: BenchOptions,
    files: _Files,
    mode: MatcherMode,
    precision: Precision,
    measures: Sequence[str],
) -> Iterator[Row]:
    """`measures` of one mode and precision, without these facts in the rows."""
    if "idle" in measures or "alone" in measures:
        yield from _single_calls(options, files, mode, precision, measures)
    if "load" in measures or "saturation" in measures:
        yield from _loads(options, files, mode, precision, measures)
    if "swap" in measures:
        yield from _swaps(options, files, mode, precision)


def _single_calls(
    options: BenchOptions,
    files: _Files,
    mode: MatcherMode,
    precision: Precision,
    measures: Sequence[str],
) -> Iterator[Row]:
    """Measure calls one by one; `grpc_p50_ms` is what they take without a service behind them."""
    seconds = min(_IDLE_SECONDS, 5 * options.seconds)
    loads: dict[str, Load] = {
        "idle": OpenLoop(_IDLE_RATE, seconds),
        "alone": ClosedLoop(1, options.seconds),
    }
    with (
        _server(options, files, mode, precision, "single", _ONE) as server,
        prompt_server() as address,
    ):
        for name, load in loads.items():
            if name in measures:
                row = _load(server, files, load, _ONE)
                prompt = _latencies(address, files, load, _ONE)
                yield {"measure": name, **row, "grpc_p50_ms": prompt["ms"]["latency_ok"]["p50"]}


def _loads(
    options: BenchOptions,
    files: _Files,
    mode: MatcherMode,
    precision: Precision,
    measures: Sequence[str],
) -> Iterator[Row]:
    many = _TINY if options.tiny else _MANY
    trace = files.folder / f"{mode}-{precision}.trace.json"
    server = _server(options, files, mode, precision, "loads", many, "--timeline", trace)
    rates = FP8_RATES if precision == "fp8" else RATES
    saturated: Row = {}
    with server:
        if "load" in measures:
            for rate in options.rates or (_TINY_RATES if options.tiny else rates):
                load = OpenLoop(rate, options.seconds)
                yield {"measure": "load", **_load(server, files, load, many)}
        if "saturation" in measures:
            saturated = _load(server, files, ClosedLoop(_IN_FLIGHT, options.seconds), many)
    if saturated:  # the server has ended, and so has written its trace
        seconds = saturated.pop("seconds")
        yield {**saturation_row(options, trace, seconds), **saturated}


def _swaps(
    options: BenchOptions, files: _Files, mode: MatcherMode, precision: Precision
) -> Iterator[Row]:
    many = _TINY if options.tiny else _MANY
    with _server(options, files, mode, precision, "swap", many) as server:
        for rate in options.rates or (_TINY_RATES if options.tiny else SWAP_RATES):
            load = OpenLoop(rate, min(_SWAP_SECONDS, 2 * options.seconds))
            alone = _load(server, files, load, many)
            before = len(server.events("swapped"))
            with live_loads(server.admin_address, _VERSIONS) as faults:
                row = _load(server, files, load, many)
            swapped = [event["seconds"] for event in server.events("swapped")[before:]]
            yield {
                "measure": "swap",
                **row,
                **{f"alone_{name}": alone[name] for name in _ALONE},
                "live_load_s": swapped,
                "live_load_faults": faults,
            }


@contextmanager
def live_loads(address: str, versions: Sequence[int]) -> Iterator[list[str]]:
    """Load one version after the other inside `with`, the last first, until a load fails.

    Yield the faults, at most one. It is known after the block: then the last load has ended.
    """
    faults: list[str] = []
    stop = threading.Event()

    def load_by_turns() -> None:
        try:
            with AdminClient(address) as client:
                for version in cycle(reversed(versions)):
                    client.load(version, timeout=_LOAD_SECONDS)
                    if stop.is_set():
                        return
        except CallError as error:
            faults.append(str(error))

    thread = threading.Thread(target=load_by_turns, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        stop.set()
        thread.join()


def _server(
    options: BenchOptions,
    files: _Files,
    mode: MatcherMode,
    precision: Precision,
    name: str,
    processes: _Processes,
    *arguments: str | Path,
) -> RunningServer:
    """Return a server of a mode. It loads another version only when Admin asks for it."""
    name = f"{mode}-{precision}-{name}"
    state = files.folder / f"{name}.state"
    state.mkdir()
    config = write_server_config(
        files.folder / f"{name}.yaml",
        files.snapshots[mode],
        files.checkpoint,
        files.profiles,
        warm_up=str(files.warm_up),
        device=str(options.device),
        precision=precision,
        threads={"post": _POST_THREADS},
        batching={"target_queue_ms": _NO_SHEDDING_MS},
        listen={"front_ends": processes.front_ends},
        state_dir=str(state),
        watch_seconds=0,
    )
    log = files.folder / f"{name}.log"
    return RunningServer(config, log, *arguments, start_seconds=_START_SECONDS)


def _written(work: Workload, folder: Path, measures: Mapping[MatcherMode, Sequence[str]]) -> _Files:
    catalogue = work.catalogue()
    snapshots = {
        mode: catalogue.written(folder, mode, _VERSIONS[-1 if "swap" in own else 0])
        for mode, own in measures.items()
    }
    spec = replace(work.spec, sid_space=catalogue.spec.sid_space)
    checkpoint = _checkpoint(work.device, spec, work.options.commit_cache or folder)
    users = catalogue.attributes(0, _TINY_REQUESTS if work.options.tiny else REQUESTS)
    messages = full_requests(spec, users, seed=1)
    requests, warm_up = folder / f"requests{WIRE}", folder / "warm-up.jsonl"
    write_wire((message.SerializeToString() for message in messages), requests)
    head = [MessageToJson(message, indent=None) for message in messages[:_WARM_UP_REQUESTS]]
    warm_up.write_text("".join(f"{line}\n" for line in head), encoding="utf-8")
    profile = {"beams": list(work.dynamic.beams), "num_sids": work.dynamic.num_sids}
    generation = {"max_batch": work.batch, "default_profile": "full", "profiles": {"full": profile}}
    profiles = folder / "profiles.yaml"
    profiles.write_text(yaml.safe_dump({"generation": generation}), encoding="utf-8")
    return _Files(folder, snapshots, checkpoint, profiles, requests, warm_up)


def _checkpoint(device: torch.device, spec: ModelSpec, folder: Path) -> Path:
    """Write a checkpoint of random weights, unless the folder has one of this specification."""
    name = hashlib.sha256(repr(spec).encode()).hexdigest()[:12]
    checkpoint = folder / f"checkpoint-{name}"
    if not checkpoint.exists():
        half = PRECISIONS["bf16"]  # as checkpoints store it: the tables are gigabytes
        model = random_weights(spec, device, features=half)
        save_checkpoint(model.to(torch.device("cpu"), half), checkpoint)
    return checkpoint


def _roomy_folder() -> Path | None:
    """Return a folder in memory, if it has room for catalogue and checkpoint; None: anywhere."""
    folder = _MEMORY_FOLDER
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    return folder if shutil.disk_usage(folder).free >= _FILES_BYTES else None


def saturation_row(options: BenchOptions, trace: Path, seconds: float) -> Row:
    """Return a row from the end of the trace, which the server's last load fills."""
    slices = read_timeline(trace)
    last = slices[-1].end
    begin, end = last - (1 - _EDGE_SHARE) * seconds, last - _EDGE_SHARE * seconds
    batches, mean_batch = generated_batches(slices, begin, end)
    if options.out is not None:
        middle = (begin + end) / 2
        shown = window(slices, middle, middle + _WINDOW_SECONDS)
        write_window(trace, shown, options.out.with_name(f"{options.out.stem}_timeline.json"))
    return {
        "measure": "saturation",
        "in_flight": _IN_FLIGHT,
        "batches": batches,
        "mean_batch": round(mean_batch, 2),
        "generate_busy": round(busy_share(slices, "generate", begin, end), 4),
    }


def _latencies(address: str, files: _Files, load: Load, processes: _Processes) -> dict[str, Any]:
    """Make the load from other processes, and return our client's own part of the result."""
    result = run_in_a_process(
        address,
        files.requests,
        load,
        files.folder / "result.json",
        processes.connections,
        processes=processes.clients,
    )
    return {**result["grace"], "seconds": result["total"] / 1e9}


def _load(server: RunningServer, files: _Files, load: Load, processes: _Processes) -> Row:
    """Load the server and return a row; the threads' shares of a core leave out both run ends."""
    with ThreadWatch(server.pid) as watch:
        own = _latencies(server.address, files, load, processes)
    seconds = own["seconds"]
    edge = _EDGE_SHARE * seconds
    answered = round(own["ok"] / seconds, 1)
    latency = own["ms"]["latency_ok"] or {"p50": None, "p99": None}
    return {
        **(
            {"rps": load.rate, "answered_rps": answered}
            if isinstance(load, OpenLoop)
            else {"rps": answered, "seconds": seconds}
        ),
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "errors": own["failed"],
        "withdrawn": own["withdrawn"],
        "valid": own["valid"],
        "client_late_p99_ms": own["ms"]["lateness"] and own["ms"]["lateness"]["p99"],
        "client_processes": processes.clients,
        "connections": processes.clients * processes.connections,
        "front_ends": processes.front_ends,
        "stages_p50_ms": {
            name: own["ms"][name] and own["ms"][name]["p50"]
            for name in (*ServerTimes._fields, "overhead")
        },
        "cpu": watch.busiest(own["began"] + edge, own["began"] + seconds - edge),
    }
