"""Updates of ads on a real server, which come together, at a bad time, or to a full disk.

test_state_machine.py has what each of them does, and test_start_up.py the folders it refuses.
"""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.client import AdminClient
from grace.configs.errors import CallError
from grace.index.storage import load_snapshot
from support.faults import Faults
from support.health import status
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.update_calls import Updater, assert_only_missing, update

pytestmark = pytest.mark.subprocess

MANY = 1_000_003
KILOBYTE = 1 << 10
A_MOMENT = 0.3  # long enough for what must not happen


@pytest.fixture
def config(serving_files: ServingFiles, tmp_path: Path) -> Path:
    return serving_files.write_config(f"{tmp_path.name}.yaml", state_dir=str(tmp_path / "state"))


@contextmanager
def serving(config: Path, **settings: Any) -> Iterator[tuple[ServerProcess, Updater, Caller]]:
    with (
        ServerProcess(config, **settings) as server,
        Updater(server) as updater,
        Caller(server.address) as caller,
    ):
        yield server, updater, caller


def ads_of(caller: Caller, request: bytes) -> list[int]:
    return list(caller.call(request).response.ad_ids)


@pytest.fixture
def request_(serving_files: ServingFiles) -> bytes:
    """A request that gets several ads."""
    return message(serving_files.requests[0], max_ads=10_000)


@pytest.mark.parametrize(
    ("order", "ids"),
    [
        (random.Random(7).sample(range(17), 17), 1),  # each waits only a second for those before it
        (range(8), 20_000),  # 120 KB each
    ],
    ids=["they overtake each other", "they are large"],
)
def test_updates_that_are_sent_at_once_are_all_taken_in_order(
    operated: ServerProcess, order: Sequence[int], ids: int
) -> None:
    first = status(operated).updates.sequence + 1
    with Updater(operated) as updater:
        stop = {"ad": range(1 << 40, (1 << 40) + ids)}
        calls = [updater.start(update(first + number, stop=stop)) for number in order]
        outcomes = [call.outcome() for call in calls]
    assert [outcome.text for outcome in outcomes if not outcome.ok] == []
    assert status(operated).updates.sequence == first + len(order) - 1


def test_without_a_state_dir_updates_are_refused_with_the_remedy(
    healthy_server: ServerProcess,
) -> None:
    with Updater(healthy_server) as updater:
        refused = updater.call(update(1))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "no_state_dir")
    assert refused.text.startswith("state_dir: not set, so updates cannot be kept; restart")
    assert not status(healthy_server).HasField("updates")
    with AdminClient(healthy_server.admin) as client, pytest.raises(CallError) as caught:
        next(client.stops("ad", 60.0))
    assert "(no_state_dir): state_dir: not set" in str(caught.value)


def test_an_update_is_acknowledged_only_when_replies_of_the_older_state_have_left_every_relay(
    serving_files: ServingFiles, tmp_path: Path, request_: bytes, faults: Faults
) -> None:
    state = str(tmp_path / "state")
    config = serving_files.write_config("upd.yaml", state_dir=state, listen={"front_ends": 2})
    with serving(config, faults=faults) as (server, updater, caller):
        first = ads_of(caller, request_)[0]
        faults.forget()
        with faults.closed("post"):
            waiting = caller.start(request_)
            server.wait_until(lambda: bool(faults.batches("post")), "a batch is in post")
            stop = updater.start(update(1, stop={"ad": [first]}))
            server.wait_until(lambda: status(server).updates.sequence == 1, "it is published")
            time.sleep(A_MOMENT)
            assert not stop.done
        assert stop.outcome().ok
        assert waiting.outcome().ok
        assert first not in ads_of(caller, request_)
        relay = server.children[-1]
        os.kill(relay, signal.SIGSTOP)
        try:
            stop = updater.start(update(2, stop={"ad": [7]}))
            server.wait_until(lambda: status(server).updates.sequence == 2, "it is published")
            time.sleep(A_MOMENT)
            assert not stop.done
        finally:
            os.kill(relay, signal.SIGCONT)
        assert stop.outcome().ok


def test_a_million_stopped_ads_are_taken_and_kept(
    config: Path, serving_files: ServingFiles, request_: bytes
) -> None:
    ads = load_snapshot(serving_files.snapshots).ads.ad_ids.tolist()
    stopped = [*ads, *range(10**15, 10**15 + MANY - len(ads))]
    with serving(config) as (_, updater, caller):
        assert updater.apply(1, full=True, stop={"ad": stopped}).ads_stopped == len(ads)
        assert ads_of(caller, request_) == []
        assert updater.apply(2, resume={"ad": ads[:1]}).ads_stopped == len(ads) - 1
    with serving(config) as (server, _, _):
        facts = status(server).updates
        assert (facts.sequence, dict(facts.stopped)) == (2, {"ad": MANY - 1})
        assert facts.ads_stopped == len(ads) - 1
        with AdminClient(server.admin) as client:
            assert list(client.stops("ad", 60.0)) == sorted(stopped[1:])
            assert list(client.stops("campaign", 60.0)) == []


def test_updates_that_cannot_be_written_are_not_in_force(config: Path, request_: bytes) -> None:
    """A limit on the size of files makes the write of the log fail."""
    with serving(config) as (server, updater, caller):
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (KILOBYTE, KILOBYTE))
        ads = ads_of(caller, request_)
        row = json.dumps({"ad_id": 1, "sid": [0, 0, 0, 0], "title": "x" * KILOBYTE})
        put = updater.call(update(1, put=[row]))
        assert (put.code, put.reason) == (grpc.StatusCode.UNAVAILABLE, "update_not_kept")
        full = updater.call(update(1, stop={"ad": [*ads, *range(999)]}))
        assert (full.code, full.reason) == (grpc.StatusCode.UNAVAILABLE, "update_not_kept")
        assert "cannot be written: File too large; free some space" in full.text
        assert ads_of(caller, request_) == ads
        updater.apply(1, stop={"ad": ads[:1]})
        assert_only_missing(ads_of(caller, request_), ads, ads[:1])
        assert server.metric("grace_updates_total", result="failed") == 2
        assert status(server).updates.changes_waiting == 0
