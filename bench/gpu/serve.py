"""`grace bench serve`: `grace serve` on the GPU, loaded through gRPC by processes of the same host.

idle        single requests, four a second: the machine falls asleep between them
alone       one request under way: the next one follows the reply at once
load        latencies and outcomes at offered rates, Poisson arrivals, users of the catalogue
saturation  a closed loop: how busy `generate` is, by the GPU's clock, when there is always work
swap        a rate twice: alone, and while live loads run back to back; they alternate between two
            versions of the catalogue's size
visible     changes of ads back to back, without a load (fresh.py)
fresh       a rate twice: alone, and while ads change back to back

Each matcher mode has a server for a single caller, which holds the connection itself, one for the
loads, another one for swap, and one for changes. They have the same requests and checkpoint.
Several processes make the loads: one would be the limit.
`cpu` is each thread's share of a core, for the threads of all the server's processes. Parts are
named measure:mode.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from grace.bench.background import in_background
from grace.bench.gpu.fresh import measure_changes
from grace.bench.gpu.subjects.catalogue import FIRST_VERSION
from grace.bench.gpu.subjects.served import (
    EDGE_SHARE,
    IN_FLIGHT,
    ONE,
    Served,
    alone_facts,
    latencies,
    load_server,
    roomy_folder,
    write_files,
)
from grace.bench.gpu.subjects.workload import Workload
from grace.bench.load.client import ClosedLoop, Load, OpenLoop
from grace.bench.load.prompt_server import prompt_server
from grace.bench.result_file import Row
from grace.client import AdminClient
from grace.configs.eligibility import MatcherMode

RATES = (400.0, 800.0, 1000.0, 1200.0, 1300.0)
FP8_RATES = (400.0, 800.0, 1200.0, 1500.0, 1700.0)
SWAP_RATES = (400.0, 1000.0)
_IDLE_RATE = 4.0
_IDLE_SECONDS = 10.0
_SWAP_SECONDS = 10.0  # a load of the paper's catalogue takes seconds
_LOAD_SECONDS = 120.0  # the most that one live load may take
_VERSIONS = (FIRST_VERSION, FIRST_VERSION + 1)


def measure(work: Workload) -> Iterator[Row]:
    measures: dict[MatcherMode, list[str]] = {}
    for part in work.options.parts():
        name, _, mode = part.partition(":")
        measures.setdefault(MatcherMode(mode), []).append(name)
    with tempfile.TemporaryDirectory(dir=roomy_folder()) as folder:
        swaps = any("swap" in own for own in measures.values())
        files = write_files(work, Path(folder), _VERSIONS[-1 if swaps else 0])
        for precision in work.options.precisions:
            for mode, own in measures.items():
                facts = {"mode": mode.value, "precision": precision}
                for row in _of_mode(Served(work.options, files, mode, precision), own):
                    yield {"measure": row["measure"], **facts, **row}


def _of_mode(served: Served, measures: Sequence[str]) -> Iterator[Row]:
    """Measure one mode and precision, without these facts in the rows."""
    if "idle" in measures or "alone" in measures:
        yield from _single_calls(served, measures)
    if "load" in measures or "saturation" in measures:
        yield from _loads(served, measures)
    if "swap" in measures:
        yield from _swaps(served)
    if "visible" in measures or "fresh" in measures:
        yield from measure_changes(served, measures)


def _single_calls(served: Served, measures: Sequence[str]) -> Iterator[Row]:
    """Measure calls one by one; `grpc_p50_ms` is what they take without a service behind them."""
    seconds = served.options.seconds
    loads: dict[str, Load] = {
        "idle": OpenLoop(_IDLE_RATE, min(_IDLE_SECONDS, 5 * seconds)),
        "alone": ClosedLoop(1, seconds),
    }
    with served.server("single", ONE) as server, prompt_server() as address:
        for name, load in loads.items():
            if name in measures:
                row = load_server(server, served.files, load, ONE)
                prompt = latencies(address, served.files, load, ONE)
                yield {"measure": name, **row, "grpc_p50_ms": prompt["ms"]["latency_ok"]["p50"]}


def _loads(served: Served, measures: Sequence[str]) -> Iterator[Row]:
    options, files, many = served.options, served.files, served.many
    trace = files.folder / f"{served.mode}-{served.precision}.trace.json"
    saturated: Row = {}
    with served.server("loads", many, "--timeline", trace) as server:
        if "load" in measures:
            for rate in served.rates(FP8_RATES if served.precision == "fp8" else RATES):
                load = OpenLoop(rate, options.seconds)
                yield {"measure": "load", **load_server(server, files, load, many)}
        if "saturation" in measures:
            saturated = load_server(server, files, ClosedLoop(IN_FLIGHT, options.seconds), many)
    if saturated:  # the server has ended, and so has written its trace
        seconds = saturated.pop("seconds")
        yield {**saturation_row(trace, seconds), **saturated}


def _swaps(served: Served) -> Iterator[Row]:
    files, many, turns = served.files, served.many, cycle(reversed(_VERSIONS))
    with served.server("swap", many) as server, AdminClient(server.admin_address) as client:
        for rate in served.rates(SWAP_RATES):
            load = OpenLoop(rate, min(_SWAP_SECONDS, 2 * served.options.seconds))
            alone = load_server(server, files, load, many)
            before = len(server.events("swapped"))
            with in_background(lambda: client.load(next(turns), timeout=_LOAD_SECONDS)) as faults:
                row = load_server(server, files, load, many)
            swapped = [event["seconds"] for event in server.events("swapped")[before:]]
            yield {
                "measure": "swap",
                **row,
                **alone_facts(alone),
                "live_load_s": swapped,
                "live_load_faults": faults,
            }


def saturation_row(trace: Path, seconds: float) -> Row:
    """Return a row from the end of a Chrome trace, which the server's last load fills: its batches,
    their mean size, and the share of the time in which `generate` worked, overlaps counted once."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    spans = sorted((each for each in events if each["ph"] == "X"), key=lambda each: each["ts"])
    last = (spans[-1]["ts"] + spans[-1]["dur"]) / 1e6
    begin, end = last - (1 - EDGE_SHARE) * seconds, last - EDGE_SHARE * seconds
    busy, until, sizes = 0.0, begin, []
    for span in spans:
        first, after = span["ts"] / 1e6, (span["ts"] + span["dur"]) / 1e6
        if span["name"] == "generate" and first < end and after > begin:
            busy += max(0.0, min(after, end) - max(first, until))
            until = max(until, after)
            sizes.append(span["args"]["requests"])
    return {
        "measure": "saturation",
        "in_flight": IN_FLIGHT,
        "batches": len(sizes),
        "mean_batch": round(sum(sizes) / max(1, len(sizes)), 2),
        "generate_busy": round(busy / (end - begin), 4),
    }
