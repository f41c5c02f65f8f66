"""Load a server of the tiny catalogue lightly for hours, and report whether anything grows.

    python -m grace.bench.load.soak --out soak.json
    python -m grace.bench.load.soak --seconds 300

The table shows the memory, threads and descriptors of the server and of each of its relays. The
command exits with 1 if one of them grows, or if clients and server count different calls.
"""

import asyncio
import gc
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grace.bench.load.options import parser_of, positive, run_command
from grace.bench.load.shots import read_requests
from grace.bench.load.soak import holdings
from grace.bench.load.soak.mixed_load import RATES, MixedLoad, Target
from grace.bench.load.tiny_server import TinyServerFiles, write_tiny_server_files
from grace.bench.result_file import Row, require_place, write_result
from grace.bench.running_server import RunningServer
from grace.server.errors import STATUS_OF

SAMPLES = 360  # in a run, at most one a second
MESSAGE_BYTES = 1 << 16
SETTLE_SECONDS = 10.0

RETRIEVES = RATES.keys() - {"beyond_grpc", "health", "health_watch", "status", "scrape"}
"""The kinds of work that the server counts as calls."""

UNCOUNTED_ENDS = {"beyond_grpc": ("ResourceExhausted", "Unavailable")}
"""The permitted ends of work that must fail, although the server does not count it. gRPC refuses
the message. A connection that has reached its age may close before the client reads the refusal."""

GIVEN_UP = ("hasty", "cancelled", "hanging_up")
ENDS_GIVEN_UP = {"OK"} | {
    reason
    for reason, status in STATUS_OF.items()
    if status.name in ("CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
}
"""Calls that a client may give up, and the ways in which they may end at the server."""


@dataclass(frozen=True, slots=True)
class Soak:
    """A finished soak."""

    samples: Sequence[holdings.Sample]
    rows: Sequence[Row]
    ends: Mapping[str, Mapping[str, int]]  # how the work of each kind ended at the clients
    counted: Mapping[str, int]  # the calls that the server counted, by OK or reason
    faults: Sequence[str]  # the counts that differ between clients and server

    @property
    def passed(self) -> bool:
        return not self.faults and all(row["flat"] for row in self.rows)


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("grace.bench.load.soak", __doc__)
    parser.add_argument("--seconds", type=positive, default=3600.0, help="default: 3600")
    parser.add_argument("--front-ends", type=int, default=2, help="listen.front_ends; default: 2")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args(arguments)
    if options.out is not None:
        require_place(options.out)
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder))
        soak = run_soak(files, options.seconds, options.front_ends)
    print(soak_report(soak))
    if options.out is not None:
        facts = {"ends": soak.ends, "counted": soak.counted, "faults": soak.faults}
        samples = list(map(asdict, soak.samples))
        write_result(options.out, parser.prog, arguments, [*soak.rows, facts, {"samples": samples}])
    return 0 if soak.passed else 1


def run_soak(files: TinyServerFiles, seconds: float, front_ends: int) -> Soak:
    """Start a server, load it, and stop it. Raise CallError if the server ends under load."""
    config = files.write_config(
        f"soak{front_ends}.yaml",
        listen={"front_ends": front_ends},
        limits={"message_bytes": MESSAGE_BYTES},
        logs={"requests": True},
    )
    requests = read_requests(files.requests)
    with RunningServer(config, files.folder / f"soak{front_ends}.log") as server:
        (listening,) = server.events("listening")
        target = Target(
            listening["retrieve"], listening["admin"], listening["metrics"], MESSAGE_BYTES
        )
        load = MixedLoad(target, requests, RATES)
        samples = asyncio.run(_sampled(server.pid, load, seconds))
        counted = _settled_counts(server)
    rows = holdings.growth_rows(samples)
    return Soak(samples, rows, load.ends, counted, count_faults(load.ends, counted))


def soak_report(soak: Soak) -> str:
    calls, others = Counter[str](), Counter[str]()
    for kind, counts in soak.ends.items():
        (calls if kind in RETRIEVES else others).update(counts)
    lines = [
        holdings.growth_table(soak.rows),
        f"{soak.samples[-1].seconds:.0f} s; the slope of the memory needs 600 s or more",
        "Retrieve, clients saw:    " + _listed(calls),
        "Retrieve, server counted: " + _listed(soak.counted),
        "other work, clients saw:  " + _listed(others),
        *(f"fault: {fault}" for fault in soak.faults),
    ]
    return "\n".join(lines)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "none"


async def _sampled(server: int, load: MixedLoad, seconds: float) -> list[holdings.Sample]:
    """Run the load, and meanwhile sample what the processes hold."""
    processes, begin = holdings.processes_of(server), time.monotonic()
    samples: list[holdings.Sample] = []

    def sample() -> None:
        gc.collect()  # until then, calls that ended with an error keep connections open
        held = {name: holdings.holdings_of(pid) for name, pid in processes.items()}
        samples.append(holdings.Sample(round(time.monotonic() - begin, 2), held))

    running = asyncio.create_task(load.run(seconds))
    sample()
    while not running.done():
        await asyncio.wait((running,), timeout=max(1.0, seconds / SAMPLES))
        sample()
    await running
    return samples


def _settled_counts(server: RunningServer) -> dict[str, int]:
    """Read the server's counters, once no call is open."""
    end = time.monotonic() + SETTLE_SECONDS
    while (values := server.metrics())["grace_open_calls", ""]:
        if time.monotonic() > end:
            raise server.failed(f"still has open calls {SETTLE_SECONDS:g} s after the load")
        time.sleep(0.1)
    counted = {
        reason: int(value)
        for (name, reason), value in values.items()
        if name == "grace_request_failures_total" and value
    }
    return {"OK": int(values["grace_requests_total", "OK"]), **counted}


def count_faults(ends: Mapping[str, Mapping[str, int]], counted: Mapping[str, int]) -> list[str]:
    """Compare what clients saw with what the server counted.

    A call that its client gives up may end in any way at the server, or never reach it, so the
    server may count up to this many more. All other counts must be equal on both sides.
    """
    seen: Counter[str] = Counter()
    unknown = 0
    for kind in RETRIEVES & ends.keys():
        for end, count in ends[kind].items():
            if kind in GIVEN_UP and end not in ("OK", *STATUS_OF):
                unknown += count
            else:
                seen[end] += count
    faults = [
        f"{kind}: {count} ended with {end}"
        for kind in ends.keys() - RETRIEVES
        for end, count in ends[kind].items()
        if end not in UNCOUNTED_ENDS.get(kind, ("OK",))
    ]
    for end in sorted({*seen, *counted}):
        clients, server = seen[end], counted.get(end, 0)
        if not clients <= server <= clients + (unknown if end in ENDS_GIVEN_UP else 0):
            faults.append(f"{end}: clients saw {clients}, the server counted {server}")
    if sum(counted.values()) > sum(seen.values()) + unknown:
        faults.append("the server counted more calls than clients made")
    return faults


if __name__ == "__main__":
    run_command(main)
