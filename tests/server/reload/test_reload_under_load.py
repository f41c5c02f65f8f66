"""Reloads under load: no call fails, and each answer is the plain one of the version it names."""

import os
from pathlib import Path

import pytest

from grace.bench.running_server import GRACE_SERVE
from support.live_snapshots import LiveRoot
from support.operators import operator_of
from support.reload_load import CheckedClients, memory_while_loading
from support.retrieve_calls import Counters, assert_counters_conserve
from support.served import front_ends
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

SECONDS = float(os.environ.get("RELOAD_SECONDS", "60"))
MOST_GROWTH_MIB = 8.0
"""The allocator keeps a little more from load to load at first; a pair that is not freed costs some
MiB each time, and there are dozens of loads."""


def reload_under_load(
    files: ServingFiles, folder: Path, seconds: float, front_ends: int, device: str = "cpu"
) -> None:
    live = LiveRoot.write(folder, files)
    expected = live.expected(1, 2)
    assert any(
        expected[f"r{i}", 1].ad_ids != expected[f"r{i}", 2].ad_ids
        for i in range(len(live.requests))
    )
    config = live.write_config(
        f"load{front_ends}.yaml",
        listen={"front_ends": front_ends},
        logs={"requests": False},
        device=device,
        precision="fp32",
        memo_bytes=1 << 22,
    )
    command = () if device == "cpu" else GRACE_SERVE  # where a GPU is, `grace` is not installed
    with ServerProcess(config, command=command) as server:
        with CheckedClients(server.address, live, expected) as clients:
            memory = memory_while_loading(server, seconds)
        assert clients.faults == []
        assert set(clients.answers) == {1, 2}
        total = clients.answers.total()
        counted = assert_counters_conserve(server, total, Counters())
        assert counted.ends == {"OK": total}
        assert server.metric("grace_snapshot_load_total", result="ok") == len(memory) + 1
        assert server.metric("grace_snapshot_load_total", result="failed") == 0
        if device != "cpu":
            assert_flat_on_the_gpu(server)
        server.terminate()
        assert server.wait() == 0
    third = len(memory) // 3
    print(f"{total} answers, {len(memory)} loads, memory {memory[third]} to {memory[-1]} MiB")
    assert third >= 1
    assert min(memory[-third:]) - min(memory[third : 2 * third]) < MOST_GROWTH_MIB


def assert_flat_on_the_gpu(server: ServerProcess) -> None:
    """Without load, what tensors hold depends on the version alone."""
    held: dict[int, set[float]] = {1: set(), 2: set()}
    with operator_of(server) as operator:
        for version in (1, 2, 1, 2, 1, 2):
            operator.load(version)
            held[version].add(server.metric("grace_gpu_memory_bytes"))
    print(f"bytes on the GPU by version: {held}")
    assert all(len(each) == 1 for each in held.values())


def test_reloads_fail_no_call_and_mix_no_answer(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    reload_under_load(serving_files, tmp_path, 3.0, front_ends=0)


@pytest.mark.soak
@front_ends
def test_a_minute_of_reloads_fails_no_call_and_leaves_memory_as_it_was(
    serving_files: ServingFiles, tmp_path: Path, front_ends: int
) -> None:
    reload_under_load(serving_files, tmp_path, SECONDS, front_ends)


@pytest.mark.gpu
@front_ends
def test_reloads_on_a_gpu_fail_no_call_and_mix_no_answer(
    serving_files: ServingFiles, tmp_path: Path, front_ends: int
) -> None:
    """With captured graphs, which point at two different tries in turn."""
    reload_under_load(serving_files, tmp_path, SECONDS, front_ends, "cuda:0")
