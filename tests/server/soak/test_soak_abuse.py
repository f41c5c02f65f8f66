"""While hostile clients attack, a good client must keep its answers, and nearly its latency.

The attackers have lower priority than the server. Latencies of a busy machine say nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import support.abuse
from support.command import plain_environment
from support.retrieve_calls import Caller, message
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

CALLS_PER_SECOND = 40
SECONDS = float(os.environ.get("ABUSE_SECONDS", "15"))
SLACK_SECONDS = 0.02
"""Two cores share attackers, server and client: a difference below this says nothing."""


@contextmanager
def attacked(address: str, kind: str) -> Iterator[None]:
    program = Path(support.abuse.__file__)
    environment = plain_environment(PYTHONPATH=str(program.parent.parent))
    process = subprocess.Popen(
        [sys.executable, program, kind, address], env=environment, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield
        assert process.poll() is None, "the attack goes on until it is stopped"
    finally:
        process.kill()
        process.communicate()


def good_calls(caller: Caller, request: bytes) -> tuple[float, float]:
    """Call at a fixed rate for a while; return the share of OK replies, and their P99."""
    latencies: list[float] = []
    count = round(CALLS_PER_SECOND * SECONDS)
    begin = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begin + number / CALLS_PER_SECOND - time.perf_counter()))
        called = time.perf_counter()
        if caller.call(request, seconds=5.0).ok:
            latencies.append(time.perf_counter() - called)
    latencies.sort()
    return len(latencies) / count, latencies[int(0.99 * len(latencies))]


@front_ends
@pytest.mark.parametrize("kind", support.abuse.KINDS)
def test_a_good_client_keeps_its_answers_while_a_hostile_one_attacks(
    serving_files: ServingFiles, kind: str, front_ends: int
) -> None:
    config = serving_files.write_config(
        f"abuse-{kind}-{front_ends}.yaml",
        listen={"front_ends": front_ends, "reply_seconds": 2.0},
        logs={"requests": False},
    )
    request = message(serving_files.requests[0], profile="reduced")
    with ServerProcess(config) as server:
        caller = Caller(server.address)
        _, usual = good_calls(caller, request)
        with attacked(server.address, kind):
            share, beside = good_calls(caller, request)
        print(
            f"{kind}, {front_ends} relays: {share:.1%} OK, P99 {beside:.3f} s, usual {usual:.3f} s"
        )
        caller.close()
        wait_until(lambda: server.metric("grace_open_calls") == 0, "no call stays open")
        last = Caller(server.address)
        assert last.call(request).ok
        last.close()
        assert share >= 0.99
        assert beside <= 2 * usual + SLACK_SECONDS


def test_a_server_that_is_out_of_descriptors_answers_its_clients(
    serving_files: ServingFiles,
) -> None:
    limits = {"connections": 300}
    config = serving_files.write_config("descriptors.yaml", limits=limits, logs={"requests": False})
    request = message(serving_files.requests[0], profile="reduced")
    with ServerProcess(config) as server:
        caller = Caller(server.address)
        _, usual = good_calls(caller, request)
        subprocess.run(["prlimit", f"--pid={server.pid}", "--nofile=200:"], check=True)
        with attacked(server.address, "idle"):
            share, beside = good_calls(caller, request)
        caller.close()
        assert share >= 0.99
        assert beside <= 2 * usual + SLACK_SECONDS
