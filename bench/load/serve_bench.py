"""Measures `grace serve` with the tiny model on the CPU, client and server on one machine.

    python -m grace.bench.load.serve_bench --out bench/results/cpu-2core/serve.json

load        latencies and outcomes at offered rates with Poisson arrivals
overhead    server time of a request, minus queue and stages, from the request log; and the cost of
            reading a request, which the log counts as queue
saturation  how busy `generate` is, by its own clock, when there is always work
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.bench.load.client import STAGES, ClosedLoop, Load, OpenLoop
from grace.bench.load.client_process import run_in_a_process
from grace.bench.load.ghz import percentile
from grace.bench.load.options import parser_of, run_command
from grace.bench.load.shots import read_shots
from grace.bench.load.timeline import busy_share, generated_batches, read_timeline
from grace.bench.load.tiny_server import TinyServerFiles, write_tiny_server_files
from grace.bench.result_file import Row, facts_of, record
from grace.bench.running_server import RunningServer
from grace.configs.serving import load_serving_config
from grace.server.stages.requests import read_request

PROGRAM = "python -m grace.bench.load.serve_bench"
PRECISION = "float32"
OVERHEAD_RATE = 300
IN_FLIGHT = 64  # four full batches: the queue is never empty
EDGE_SECONDS = 1.0  # left out at both ends of a run, where the load is not steady


def main(arguments: Sequence[str]) -> None:
    parser = parser_of("grace.bench.load.serve_bench", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 200, 300, 400])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder))
        rows = _rows(files, options.rates, options.seconds)
        record(rows, options.out, facts_of(PROGRAM, arguments))


def _rows(files: TinyServerFiles, rates: Sequence[float], seconds: float) -> Iterator[Row]:
    with RunningServer(files.write_config("loads.yaml"), files.folder / "loads.log") as server:
        for rate in rates:
            yield _load(server, files, rate, seconds)
    yield _overhead(files, seconds)
    yield _saturation(files, seconds)


def _load(server: RunningServer, files: TinyServerFiles, rate: float, seconds: float) -> Row:
    result = _client(server, files, OpenLoop(rate, seconds))
    latency, own = result["grace"]["ms"]["latency_ok"], result["grace"]
    return {
        "measure": "load",
        "precision": PRECISION,
        "rps": rate,
        "answered_rps": round(own["ok"] / result["total"] * 1e9, 1),
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "errors": own["failed"],
        "client_late_p99_ms": own["ms"]["lateness"]["p99"],
        "valid": own["valid"],
    }


def _overhead(files: TinyServerFiles, seconds: float) -> Row:
    config = files.write_config("overhead.yaml", logs={"requests": True})
    with RunningServer(config, files.folder / "o.log") as server:
        result = _client(server, files, OpenLoop(OVERHEAD_RATE, seconds))
        lines = [line for line in server.events("request") if line["code"] == "OK"]
    late = lines[int(len(lines) * min(0.5, EDGE_SECONDS / seconds)) :]
    parts = ("queue", *STAGES)
    times = {part: sorted(line[f"{part}_us"] / 1e3 for line in late) for part in parts}
    overhead = sorted(
        (line["total_us"] - sum(line[f"{part}_us"] for part in parts)) / 1e3 for line in late
    )
    reading = _reading_ms(files, config)
    return {
        "measure": "overhead",
        "precision": PRECISION,
        "rps": OVERHEAD_RATE,
        "requests": len(late),
        "p50_ms": round(percentile(overhead, 50), 3),
        "p99_ms": round(percentile(overhead, 99), 3),
        "reading_p50_ms": round(percentile(reading, 50), 3),
        "reading_p99_ms": round(percentile(reading, 99), 3),
        "median_ms": {part: percentile(own, 50) for part, own in times.items()},
        "errors": result["grace"]["failed"],
    }


def _reading_ms(files: TinyServerFiles, config: Path) -> list[float]:
    """Return the ascending times to read each request; nothing else runs in this process."""
    serving = load_serving_config(config)
    times = []
    for _ in range(20):
        for shot in read_shots(files.requests, None):
            begin = time.perf_counter()
            read_request(shot.body, serving.limits, serving.generation)
            times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)


def _saturation(files: TinyServerFiles, seconds: float) -> Row:
    trace, config = files.folder / "timeline.json", files.write_config("saturation.yaml")
    with RunningServer(config, files.folder / "s.log", "--timeline", trace) as server:
        result = _client(server, files, ClosedLoop(IN_FLIGHT, seconds))
    slices = read_timeline(trace)
    begin, end = slices[0].begin + EDGE_SECONDS, slices[-1].end - EDGE_SECONDS
    busy = {stage: busy_share(slices, stage, begin, end) for stage in STAGES}
    batches, mean_batch = generated_batches(slices, begin, end)
    return {
        "measure": "saturation",
        "precision": PRECISION,
        "in_flight": IN_FLIGHT,
        "answered_rps": round(result["grace"]["ok"] / result["total"] * 1e9, 1),
        "seconds": round(end - begin, 1),
        "batches": batches,
        "mean_batch": round(mean_batch, 1),
        "generate_busy": round(busy.pop("generate"), 4),
        "busy": {stage: round(share, 4) for stage, share in busy.items()},
        "errors": result["grace"]["failed"],
    }


def _client(server: RunningServer, files: TinyServerFiles, load: Load) -> dict[str, Any]:
    return run_in_a_process(server.address, files.requests, load, files.folder / "result.json")


if __name__ == "__main__":
    run_command(main)
