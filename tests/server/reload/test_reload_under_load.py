"""Reloads under load: no call fails, no reply mixes versions, and acknowledged stops hold."""

import itertools
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
import torch

from grace.bench.load.soak.holdings import holdings_of
from grace.bench.running_server import GRACE_SERVE
from grace.model.checkpoints.init import write_random
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import Operator, operator_of
from support.retrieve_calls import Caller, Outcome, assert_counters_conserve, message
from support.served import front_ends
from support.server_process import ServerProcess
from support.serving_files import model_spec
from support.update_calls import Updater

pytestmark = pytest.mark.subprocess

LEAST_SWAPS, LEAST_STOPS = 5, 31
SECONDS = float(os.environ.get("RELOAD_SECONDS", "60"))
LOAD_EVERY_SECONDS = 1.0
MOST_GROWTH_MIB = 8.0
"""The allocator keeps a little more from load to load at first; a pair that is not freed costs some
MiB each time, and there are dozens of loads."""


class Load:
    """Callers on threads. Each reply is kept with the number of stops acknowledged at its call."""

    def __init__(self, server: ServerProcess, live: LiveRoot) -> None:
        self._address, self._requests = server.address, list(map(message, live.requests))
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(each,)) for each in range(5)]
        self.acknowledged: list[int] = []  # ads, in the order of their stops
        self.seen: list[tuple[int, Outcome]] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        caller, turn = Caller(self._address), number
        while not self._end.is_set():
            before, turn = len(self.acknowledged), turn + 1
            outcome = caller.call(self._requests[turn % len(self._requests)])
            self.seen.append((before, outcome))
        caller.close()

    def violations(self) -> list[tuple[int, int]]:
        """The ads of replies that were stopped before the call, which must have succeeded."""
        return [
            (before, ad)
            for before, outcome in self.seen
            for ad in {*self.acknowledged[:before]} & {*outcome.response.ad_ids}
        ]

    def assert_plain(self, live: LiveRoot) -> None:
        """Each answer is the plain one of the version that it names, and both have answered."""
        expected = live.expected(1, 2)
        assert any(
            expected[f"r{i}", 1].ad_ids != expected[f"r{i}", 2].ad_ids
            for i in range(len(live.requests))
        )
        answers: Counter[int] = Counter()
        for _, outcome in self.seen:
            assert_plain(outcome.response, expected)
            answers[outcome.response.snapshot_version] += 1
        assert set(answers) == {1, 2}


@front_ends
def test_no_call_fails_or_has_a_stopped_ad_while_the_server_swaps_in_every_way(
    live: LiveRoot, tmp_path: Path, front_ends: int
) -> None:
    state, listen = str(tmp_path / "state"), {"front_ends": front_ends}
    config = live.write_config(f"stops-{front_ends}.yaml", state_dir=state, listen=listen)
    write_random(model_spec(), tmp_path / "second", seed=7, dtype=torch.float32)
    first, second, ended, swaps = live.files.checkpoint, tmp_path / "second", threading.Event(), []

    def swap_on(operator: Operator) -> None:
        live.publish(2)
        while not ended.is_set():
            swaps.append(operator.load().changed)
            swaps.append(operator.load(checkpoint=second).changed)
            swaps.append(operator.roll_back(1).previous_version == 2)
            swaps.append(operator.unpin().previous_pin == 1)
            swaps.append(operator.load(1, first).changed)

    expected = live.expected(1)
    ads = sorted({ad for reply in expected.values() for ad in reply.ad_ids})
    stops = itertools.chain(ads[::2], itertools.count(10**15))
    with (
        ServerProcess(config) as server,
        operator_of(server) as operator,
        Updater(server) as updater,
        ThreadPoolExecutor(1) as pool,
    ):
        with Load(server, live) as before:
            assert all(operator.load(version).changed for version in (2, 1, 2, 1))
        before.assert_plain(live)
        with Load(server, live) as load:
            swapping = pool.submit(swap_on, operator)
            sequence = 0
            while sequence < LEAST_STOPS or (len(swaps) < LEAST_SWAPS and not swapping.done()):
                sequence, ad = sequence + 1, next(stops)
                updater.apply(sequence, stop={"ad": [ad]})
                load.acknowledged.append(ad)
            ended.set()
            swapping.result()
        assert load.violations() == []
        assert all(swaps[1:])
        total = len(before.seen) + len(load.seen)
        assert assert_counters_conserve(server, total).ends == {"OK": total}
        assert_answers_without(server, live, set(load.acknowledged))


def assert_answers_without(server: ServerProcess, live: LiveRoot, stopped: set[int]) -> None:
    """The server answers as version 1 does while these ads are stopped."""
    expected = live.expected(1, stopped=stopped)
    caller = Caller(server.address)
    for request in live.requests:
        reply = caller.call(message(request)).response
        plain = expected[reply.request_id, reply.snapshot_version].ad_ids
        assert list(reply.ad_ids) == list(plain)
        assert not stopped.intersection(plain)
    caller.close()


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
        with Load(server, live) as load:
            memory = memory_while_loading(server, operator)
        load.assert_plain(live)
        total = len(load.seen)
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
    for version in (1, 2, 1, 2, 1, 2):
        operator.load(version)
        held[version].add(server.metric("grace_gpu_memory_bytes"))
    print(f"bytes on the GPU by version: {held}")
    assert all(len(each) == 1 for each in held.values())
