"""Acknowledged stops hold while the server loads, swaps, rolls back and is killed."""

import itertools
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.model.checkpoints.init import write_random
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.health import status
from support.live_snapshots import LiveRoot
from support.operators import Operator, operator_of
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.update_calls import Load, Updater

pytestmark = pytest.mark.subprocess

LEAST_SWAPS, LEAST_STOPS = 5, 31


@pytest.fixture
def live(serving_files: ServingFiles, tmp_path: Path) -> LiveRoot:
    return LiveRoot.write(tmp_path, serving_files)


@pytest.fixture
def config(live: LiveRoot, tmp_path: Path) -> Path:
    return live.write_config("stops.yaml", state_dir=str(tmp_path / "state"))


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


def ads_of_campaigns(snapshot: Snapshot, campaigns: Iterable[int]) -> set[int]:
    (entities,) = (each for each in snapshot.entities if each.name == "campaign")
    places = entities.places(list(campaigns))
    lists = (entities.ads[entities.offsets[at] : entities.offsets[at + 1]] for at in places)
    return {int(snapshot.ads.ad_ids[ordinal]) for ordinals in lists for ordinal in ordinals}


def campaign_of(snapshot: Snapshot, ad: int) -> int | None:
    (entities,) = (each for each in snapshot.entities if each.name == "campaign")
    place = entities.of_ad[snapshot.ads.ordinals([ad])[0]]
    return None if place < 0 else int(entities.ids[place])


def test_no_reply_has_a_stopped_ad_while_the_server_swaps_in_every_way(
    live: LiveRoot, config: Path, tmp_path: Path
) -> None:
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


def test_a_rollback_and_a_kill_bring_back_no_stopped_ad(live: LiveRoot, config: Path) -> None:
    """Ads that only the older version has are stopped while the newer one serves."""
    expected, old = live.expected(1, 2), load_snapshot(live.root, 1)
    only_old = sorted(ads_in(expected, 1) - ads_in(expected, 2))
    campaigns = [found for ad in only_old if (found := campaign_of(old, ad)) is not None]
    stopped = {only_old[0], *ads_of_campaigns(old, campaigns[:1])}
    live.publish(2)
    with (
        ServerProcess(config) as server,
        operator_of(server) as operator,
        Updater(server) as updater,
    ):
        updater.apply(1, stop={"ad": only_old[:1], "campaign": campaigns[:1]})
        assert_answers_without(server, live, stopped, 2)
        operator.roll_back(1)
        assert_answers_without(server, live, stopped, 1)
        updater.apply(2, stop={"ad": only_old[-1:]})
        stopped.add(only_old[-1])
        server.kill()
    with ServerProcess(config) as server, operator_of(server) as operator:
        assert status(server).load.pinned_version == 1
        assert_answers_without(server, live, stopped, 1)
        operator.unpin()
        assert_answers_without(server, live, stopped, 2)
