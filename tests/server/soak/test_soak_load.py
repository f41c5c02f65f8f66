"""Mixed load for long: memory, threads and descriptors stay as they were, and counters add up."""

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from grace.bench.load import serve_bench
from grace.bench.load.client import OpenLoop, run_load
from grace.bench.load.shots import Shot
from support.retrieve_calls import Counters, message
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
RATE = 150.0
SETTLED = 0.3  # of the time: from here on nothing may grow
FEW = 2  # gRPC's pool of threads grows with a burst
MEGABYTE = 1 << 20
MESSAGE_BYTES = 1 << 16
STATUSES = {
    "OK", "Canceled", "InvalidArgument", "FailedPrecondition", "ResourceExhausted",
    "DeadlineExceeded",
}  # fmt: skip


@dataclass(frozen=True)
class Holdings:
    """Memory, threads and descriptors of a process and its children."""

    memory: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Holdings":
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        processes = [Path(f"/proc/{each}") for each in (pid, *children)]
        texts = [(process / "status").read_text().splitlines() for process in processes]
        statuses = [dict(line.split(":", 1) for line in text) for text in texts]
        return cls(
            memory=sum(int(status["VmRSS"].split()[0]) for status in statuses) * 1024,
            threads=sum(int(status["Threads"]) for status in statuses),
            descriptors=sum(len(list((process / "fd").iterdir())) for process in processes),
        )


def mixed_shots(files: ServingFiles) -> tuple[Shot, ...]:
    """Mostly good ones; the others are wrong, hasty, given up, low, or too large."""
    good = [Shot(message(request)) for request in files.requests[:31]]
    first = files.requests[0]
    others = [
        Shot(message(first, sid_space="another")),
        Shot(message(first, max_ads=999_999)),
        Shot(b"\xff" * 63),
        Shot(b"\0" * (2 * MESSAGE_BYTES)),  # refused by us
        Shot(b"\0" * (5 * MESSAGE_BYTES)),  # refused by gRPC
        Shot(message(first, priority="LOW", profile="reduced")),
        Shot(good[1].body, timeout_seconds=0.5),
        Shot(good[2].body, timeout_seconds=0.02),
        Shot(good[3].body, cancel_after_seconds=0.01),
        Shot(good[4].body, cancel_after_seconds=0.001),
    ]
    return (*good, *others)


@front_ends
def test_mixed_load_leaves_memory_threads_and_descriptors_as_they_were(
    serving_files: ServingFiles, front_ends: int
) -> None:
    config = serving_files.write_config(
        "mixed.yaml",
        listen={"front_ends": front_ends},
        batching={"max_waiting": 63},
        limits={"message_bytes": MESSAGE_BYTES},
        logs={"requests": True},
    )
    with ServerProcess(config) as server:
        idle = Holdings.of(server.pid)
        samples: list[tuple[float, Holdings]] = []
        over = threading.Event()

        def watch() -> None:
            begin = time.monotonic()
            while not over.wait(0.5):
                samples.append((time.monotonic() - begin, Holdings.of(server.pid)))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            run = run_load(server.address, mixed_shots(serving_files), OpenLoop(RATE, SECONDS))
        finally:
            over.set()
            watching.join()
        assert {call.status for call in run.calls} == STATUSES

        wait_until(lambda: server.metric("grace_inflight_requests") == 0, "nothing is in flight")
        seen = Counters.of(server)
        assert seen.ok + seen.failures == seen.calls
        # A call that its client gave up may never have become one of the server's, and one that
        # the server answered may have been given up by then.
        assert seen.calls <= len(run.calls) + run.warm_up_calls
        assert seen.ok >= sum(call.status == "OK" for call in run.calls)

        settled = [held for second, held in samples if second > SETTLED * SECONDS]
        assert settled[-1].memory <= settled[0].memory * 1.03 + 8 * MEGABYTE
        assert max(held.threads for held in settled) <= settled[0].threads + FEW
        assert max(held.descriptors for held in settled) <= settled[0].descriptors + FEW
        wait_until(
            lambda: Holdings.of(server.pid).descriptors <= idle.descriptors + 1,
            "the connections' descriptors are closed",
        )
        server.terminate()
        assert server.wait() == 0


def test_the_measurement_of_the_server_writes_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "serve.json"
    serve_bench.main(["--out", str(out), "--seconds", "4"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["measure"] for row in rows] == ["overhead", "saturation"]
    assert all(row.get("errors", 0) == 0 for row in rows)
    assert 0 < rows[1]["generate_busy"] <= 1
