"""Large updates next to calls: no call takes much longer than usual.

The engine takes a fixed time for a batch of any size. Client processes make the calls, and another
one, of lower priority, sends the updates. Latencies of a busy machine say nothing.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grace.bench.load.client import ClosedLoop, LoadRun
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import percentile
from grace.bench.load.overload import FIXED_SERVER
from grace.bench.load.shots import read_shots
from grace.index.updates.update import full_message
from support.command import plain_environment
from support.health import status
from support.served import front_ends
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

ENGINE = (*FIXED_SERVER, "--batch-ms", "25")
IN_FLIGHT, SECONDS = 3, 15.0
STOPS, WEIGHTS = 4_000_000, 2_000_000
SLACK_SECONDS = 0.02
"""Two cores share sender, clients and server: a difference below this says nothing."""
SEND = """
import os, sys
from pathlib import Path
import grpc
os.nice(5)
channel = grpc.insecure_channel(sys.argv[1], options=(("grpc.max_send_message_length", -1),))
for name in sys.argv[2:]:
    channel.unary_unary("/grace.v1.Admin/UpdateAds")(Path(name).read_bytes(), timeout=60)
"""


def messages(folder: Path) -> list[Path]:
    """FULL updates of many ids, and of none in between."""
    rng, none = np.random.default_rng(7), np.empty(0, np.int64)
    stops = rng.permutation(2**56 + np.arange(STOPS))
    weighted, numbers = 2**56 + np.arange(WEIGHTS), rng.random(WEIGHTS).astype(np.float32)
    files: list[Path] = []
    for ids, ads in ((stops[:1_000_000], none), (stops, none), (none, none), (none, weighted)) * 2:
        message = full_message(len(files) + 1, {"ad": ids}, ads, numbers[: len(ads)])
        files.append(folder / f"update-{len(files)}")
        files[-1].write_bytes(message)
    return files


@front_ends
def test_calls_next_to_large_updates_take_at_most_three_times_as_long_as_usual(
    serving_files: ServingFiles, tmp_path: Path, front_ends: int
) -> None:
    files = messages(tmp_path)
    config = serving_files.write_config(
        f"large-updates-{front_ends}.yaml",
        state_dir=str(tmp_path / "state"),
        listen={"front_ends": front_ends},
        logs={"requests": False},
    )
    shots = read_shots(serving_files.warm_up, None)
    with ServerProcess(config, command=ENGINE) as server:

        def calls(meanwhile: Callable[[], object]) -> LoadRun:
            timer = threading.Timer(3.0, meanwhile)
            timer.start()
            run = run_together(server.address, shots, ClosedLoop(IN_FLIGHT, SECONDS), IN_FLIGHT)
            timer.join()
            return run

        def send() -> None:
            command = [sys.executable, "-c", SEND, server.admin, *map(str, files)]
            subprocess.run(command, env=plain_environment(), check=True)

        usual = percentile(sorted(call.latency for call in calls(lambda: None).calls), 99)
        run = calls(send)
        assert status(server).updates.sequence == len(files)
    worst = max(call.latency for call in run.calls)
    print(f"{front_ends} relays: worst {worst * 1e3:.0f} ms, usual P99 {usual * 1e3:.0f} ms")
    assert all(call.status == "OK" for call in run.calls)
    assert worst <= 3 * usual + SLACK_SECONDS
