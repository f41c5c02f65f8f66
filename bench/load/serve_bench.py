"""Measures `grace serve` with the tiny model on the CPU, client and server on one machine.

    python -m grace.bench.load.serve_bench --out bench/results/cpu-2core/serve.json

overhead    server time of a request, minus queue and stages, from the request log
saturation  how busy `generate` is, by its own clock, when there is always work
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from grace.bench.load.client import STAGES, ClosedLoop, OpenLoop, Target, run_load
from grace.bench.load.ghz import percentile
from grace.bench.load.options import parser_of, run_command
from grace.bench.load.shots import read_shots
from grace.bench.load.timeline import read_timeline, saturation
from grace.bench.load.tiny_server import TinyServerFiles, write_tiny_server_files
from grace.bench.result_file import Row, facts_of, record
from grace.bench.running_server import RunningServer

PRECISION = "float32"
OVERHEAD_RATE = 300
IN_FLIGHT = 64  # four full batches: the queue is never empty
NO_SHEDDING_MS = 600_000.0
EDGE_SECONDS = 1.0  # left out at both ends of a run, where the load is not steady


def main(arguments: Sequence[str]) -> None:
    parser = parser_of("grace.bench.load.serve_bench", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder))
        measures = (_overhead, _saturation)
        rows = (measure(files, options.seconds) for measure in measures)
        record(rows, options.out, facts_of(parser.prog, arguments))


def _overhead(files: TinyServerFiles, seconds: float) -> Row:
    config = files.write_config("overhead.yaml", logs={"requests": True})
    with RunningServer(config, files.folder / "o.log") as server:
        target = Target(server.address, read_shots(files.requests, None))
        run = run_load(target, OpenLoop(OVERHEAD_RATE, seconds))
        lines = [line for line in server.events("request") if line["code"] == "OK"]
    late = lines[int(len(lines) * min(0.5, EDGE_SECONDS / seconds)) :]
    overhead = sorted(
        (line["total_us"] - sum(line[f"{part}_us"] for part in ("queue", *STAGES))) / 1e3
        for line in late
    )
    return {
        "measure": "overhead",
        "precision": PRECISION,
        "rps": OVERHEAD_RATE,
        "requests": len(late),
        "p50_ms": round(percentile(overhead, 50), 3),
        "p99_ms": round(percentile(overhead, 99), 3),
        "errors": sum(bool(call.error) for call in run.calls),
    }


def _saturation(files: TinyServerFiles, seconds: float) -> Row:
    trace = files.folder / "timeline.json"
    config = files.write_config("saturation.yaml", batching={"target_queue_ms": NO_SHEDDING_MS})
    with RunningServer(config, files.folder / "s.log", "--timeline", trace) as server:
        target = Target(server.address, read_shots(files.requests, None))
        run = run_load(target, ClosedLoop(IN_FLIGHT, seconds))
    slices = read_timeline(trace)
    begin, end = slices[0].begin + EDGE_SECONDS, slices[-1].end - EDGE_SECONDS
    return {
        "measure": "saturation",
        "precision": PRECISION,
        "in_flight": IN_FLIGHT,
        "answered_rps": round(sum(call.status == "OK" for call in run.calls) / run.seconds, 1),
        "seconds": round(end - begin, 1),
        **saturation(slices, begin, end),
        "errors": sum(bool(call.error) for call in run.calls),
    }


if __name__ == "__main__":
    run_command(main)
