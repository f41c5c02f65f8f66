"""A minute of reloads under load: no call fails, no reply mixes versions, memory stays flat."""

import os
import time

import pytest

from grace.bench.load.soak.holdings import holdings_of
from grace.bench.running_server import GRACE_SERVE
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import Operator, operator_of
from support.retrieve_calls import SteadyCallers, assert_counters_conserve, message
from support.served import front_ends
from support.server_process import ServerProcess

pytestmark = pytest.mark.subprocess

SECONDS = float(os.environ.get("RELOAD_SECONDS", "60"))
LOAD_EVERY_SECONDS = 1.0
MOST_GROWTH_MIB = 8.0
"""The allocator keeps a little more from load to load at first; a pair that is not freed costs some
MiB each time, and there are dozens of loads."""


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.soak),
        pytest.param("cuda:0", marks=pytest.mark.gpu),  # graphs point at two tries in turn
    ],
)
@front_ends
def test_a_minute_of_reloads_fails_no_call_and_leaves_memory_as_it_was(
    live: LiveRoot, front_ends: int, device: str
) -> None:
    config = live.write_config(
        f"load{front_ends}.yaml",
        listen={"front_ends": front_ends},
        logs={"requests": False},
        device=device,
        precision="fp32",
        memo_bytes=1 << 22,
    )
    command = () if device == "cpu" else GRACE_SERVE  # where a GPU is, `grace` is not installed
    with ServerProcess(config, command=command) as server, operator_of(server) as operator:
        messages = list(map(message, live.requests))
        with SteadyCallers(server.address, messages, threads=5) as callers:
            memory = memory_while_loading(server, operator)
        expected, total = live.expected(1, 2), len(callers.seen)
        for outcome in callers.seen:
            assert_plain(outcome.response, expected)
        assert {outcome.response.snapshot_version for outcome in callers.seen} == {1, 2}
        assert assert_counters_conserve(server, total).ends == {"OK": total}
        assert server.metric("grace_snapshot_load_total", result="ok") == len(memory) + 1
        assert server.metric("grace_snapshot_load_total", result="failed") == 0
        if device != "cpu":
            assert_flat_on_the_gpu(server, operator)
        server.terminate()
        assert server.wait() == 0
    third = len(memory) // 3
    print(f"{total} answers, {len(memory)} loads, memory {memory[third]} to {memory[-1]} MiB")
    assert third >= 1
    assert min(memory[-third:]) - min(memory[third : 2 * third]) < MOST_GROWTH_MIB


def memory_while_loading(server: ServerProcess, operator: Operator) -> list[float]:
    """Load versions 2 and 1 in turn, one a second; return the server's memory after each load.

    On a busy machine a load may take longer, and the next one follows at once. There are three
    loads at least.
    """
    memory: list[float] = []
    begin = time.monotonic()
    while time.monotonic() < begin + SECONDS or len(memory) < 3:
        assert operator.load(2 - len(memory) % 2).changed
        memory.append(holdings_of(server.pid).memory_mib)
        time.sleep(max(0.0, begin + len(memory) * LOAD_EVERY_SECONDS - time.monotonic()))
    return memory


def assert_flat_on_the_gpu(server: ServerProcess, operator: Operator) -> None:
    """Without load, what tensors hold depends on the version alone."""
    held: dict[int, set[float]] = {1: set(), 2: set()}
    for load, version in enumerate((1, 2) * 4):
        operator.load(version)
        if load >= 2:  # before, a pair may still have the blocks of batches under load
            held[version].add(server.metric("grace_gpu_memory_bytes"))
    print(f"bytes on the GPU by version: {held}")
    assert all(len(each) == 1 for each in held.values())
