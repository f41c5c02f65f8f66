"""Acknowledged stops hold while the server loads, swaps, rolls back and is killed."""

import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from grace.model.checkpoints.init import write_random
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.live_snapshots import LiveRoot
from support.operators import Operator, operator_of
from support.retrieve_calls import Caller, message
from support.served import front_ends
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.update_calls import Load, Updater

pytestmark = pytest.mark.subprocess

LEAST_SWAPS, LEAST_STOPS = 5, 31


@pytest.fixture
def live(serving_files: ServingFiles, tmp_path: Path) -> LiveRoot:
    return LiveRoot.write(tmp_path, serving_files)


def assert_answers_without(
    server: ServerProcess,
    live: LiveRoot,
    stopped: set[int],
    version: int,
) -> None:
    """The server answers as the plain version does while these ads are stopped."""
    expected = live.expected(version, stopped=stopped)
    caller = Caller(server.address)
    for request in live.requests:
        reply = caller.call(message(request)).response
        assert reply.snapshot_version == version
        plain = expected[reply.request_id, version].ad_ids
        assert list(reply.ad_ids) == list(plain)
        assert not stopped.intersection(plain)
    caller.close()


def ads_in(expected: Mapping[tuple[str, int], RetrieveResponse], version: int) -> set[int]:
    return {ad for (_, of), reply in expected.items() if of == version for ad in reply.ad_ids}


@front_ends
def test_no_reply_has_a_stopped_ad_while_the_server_swaps_in_every_way(
    live: LiveRoot, tmp_path: Path, front_ends: int
) -> None:
    state, listen = str(tmp_path / "state"), {"front_ends": front_ends}
    config = live.write_config(f"stops-{front_ends}.yaml", state_dir=state, listen=listen)
    expected = live.expected(1, 2)
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

    ads = sorted(ads_in(expected, 1))
    stops = itertools.chain(ads[::2], itertools.count(10**15))
    with (
        ServerProcess(config) as server,
        operator_of(server) as operator,
        Updater(server) as updater,
        ThreadPoolExecutor(1) as pool,
    ):
        with Load(server.address, [message(each) for each in live.requests]) as load:
            swapping = pool.submit(swap_on, operator)
            sequence = 0
            while sequence < LEAST_STOPS or (len(swaps) < LEAST_SWAPS and not swapping.done()):
                sequence, ad = sequence + 1, next(stops)
                updater.apply(sequence, stop={"ad": [ad]})
                load.acknowledged.append(ad)
            ended.set()
            swapping.result()
        assert load.violations() == []
        assert all(outcome.ok for _, outcome in load.seen)
        assert all(swaps[1:])
        assert_answers_without(server, live, set(load.acknowledged), 1)
