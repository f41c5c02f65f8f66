"""While hostile clients attack, a good client must keep its answers, and nearly its latency.

The engine takes a fixed time for a batch of any size: hostile clients fill the batches, too. They
have lower priority than the server. Latencies of a busy machine say nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import support.abuse
from grace.bench.load.client import Call as ClientCall
from grace.bench.load.client import OpenLoop, Target
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import percentile
from grace.bench.load.overload import FIXED_SERVER
from grace.bench.load.shots import Shot, read_shots
from support.command import plain_environment
from support.retrieve_calls import Caller
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

ENGINE = (*FIXED_SERVER, "--batch-ms", "40")
GENERATION = {"max_batch": 16}  # with 40 ms a batch, 400 requests a second
CALLS_PER_SECOND = 40
DEADLINE_SECONDS = 5.0
SECONDS = float(os.environ.get("ABUSE_SECONDS", "15"))
SLACK_SECONDS = 0.02
"""Two cores share attackers, server and client: a difference below this says nothing."""


@contextmanager
def attacked(address: str, kind: str) -> Iterator[None]:
    """Let a hostile client attack inside `with`."""
    program = Path(support.abuse.__file__)
    environment = plain_environment(PYTHONPATH=str(program.parent.parent))
    process = subprocess.Popen(
        [sys.executable, program, kind, address], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    try:
        yield
        assert process.poll() is None, "the attack goes on until it is stopped"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def good_calls(address: str, shots: Sequence[Shot]) -> Sequence[ClientCall]:
    """Call at random times for a while."""
    return run_together(Target(address, shots), OpenLoop(CALLS_PER_SECOND, SECONDS)).calls


def share_and_p99(calls: Sequence[ClientCall]) -> tuple[float, float]:
    """Return the share of OK replies, and their P99."""
    latencies = sorted(call.latency for call in calls if call.status == "OK")
    return len(latencies) / len(calls), percentile(latencies, 99)


@front_ends
@pytest.mark.parametrize("kind", support.abuse.KINDS)
def test_a_good_client_keeps_its_answers_while_a_hostile_one_attacks(
    serving_files: ServingFiles, kind: str, front_ends: int
) -> None:
    config = serving_files.write_config(
        f"abuse-{kind}-{front_ends}.yaml",
        generation=GENERATION,
        listen={"front_ends": front_ends, "reply_seconds": 2.0},
        logs={"requests": False},
    )
    shots = read_shots(serving_files.warm_up, DEADLINE_SECONDS)
    with ServerProcess(config, command=ENGINE) as server:
        _, usual = share_and_p99(good_calls(server.address, shots))
        with attacked(server.address, kind):
            share, beside = share_and_p99(good_calls(server.address, shots))
        print(
            f"{kind}, {front_ends} relays: {share:.1%} OK, P99 {beside:.3f} s, usual {usual:.3f} s"
        )
        wait_until(lambda: server.metric("grace_open_calls") == 0, "no call stays open")
        with Caller(server.address) as last:
            assert last.call(shots[0].body).ok
        assert share >= 0.99
        assert beside <= 2 * usual + SLACK_SECONDS
