"""Updates of ads on a real server, which come together, at a bad time, or to a full disk; and new,
changed and removed ads.

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
from grace.proto.retrieval_pb2 import UpdateAdsResponse, UpdatesStatus
from grace.server.engine.memory import MARGIN_BYTES
from support.faults import Faults
from support.fresh_ads import Row, json_row, table_rows
from support.health import health, status
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


NEW = range(10**12, 10**12 + 99)
"""Ids of new ads."""


class Scene:
    """A configuration, and a request that gets all ads like `like`."""

    def __init__(self, files: ServingFiles, folder: Path) -> None:
        self._files, self._folder = files, folder
        self.request = message(files.requests[0], max_ads=10_000)
        self.rows = table_rows(files)
        self.like: Row = {}

    @contextmanager
    def serving(self, **updates: Any) -> Iterator[tuple[ServerProcess, Updater]]:
        state = str(self._folder / "state")
        name = f"{self._folder.name}.yaml"
        config = self._files.write_config(name, state_dir=state, updates=updates)
        ready = not updates.get("require_full")
        with ServerProcess(config, ready=ready) as server, Updater(server) as updater:
            if ready and not self.like:
                self.like = self.rows[self.ads(server)[0]]
            yield server, updater

    def ads(self, server: ServerProcess) -> list[int]:
        with Caller(server.address) as caller:
            return list(caller.call(self.request).response.ad_ids)

    def new(self, server: ServerProcess) -> set[int]:
        """Return the new ads that a request gets."""
        return {ad_id for ad_id in self.ads(server) if ad_id in NEW}

    def puts(self, *ad_ids: int) -> list[str]:
        return [json_row({**self.like, "ad_id": ad_id}) for ad_id in ad_ids]


@pytest.fixture
def scene(serving_files: ServingFiles, tmp_path: Path) -> Scene:
    return Scene(serving_files, tmp_path)


@contextmanager
def too_little_memory(server: ServerProcess) -> Iterator[None]:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MARGIN_BYTES - (1 << 20)
    limits = resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, -1))
    yield
    resource.prlimit(server.pid, resource.RLIMIT_AS, limits)


def updates_of(server: ServerProcess) -> UpdatesStatus:
    return status(server).updates


def test_an_acknowledged_put_that_is_not_served_yet_outlasts_a_kill(scene: Scene) -> None:
    with scene.serving(min_interval_ms=3_600_000) as (server, updater):
        assert updater.apply(1, put=scene.puts(NEW[0]), wait_visible=True).visible == 1
        reply = updater.apply(2, put=scene.puts(NEW[1]), remove=[NEW[0]])
        assert (reply.applied, reply.sequence, reply.visible) == (True, 2, 1)
        assert scene.new(server) == {NEW[0]}
        found = updates_of(server)
        assert (found.visible, found.changes_waiting, found.ads_put) == (1, 2, 1)
        assert server.metric("grace_update_visible_seq") == 1
        server.kill()
    with scene.serving() as (server, _):
        assert scene.new(server) == {NEW[1]}
        found = updates_of(server)
        assert (found.visible, found.ads_put, found.ads_removed) == (2, 1, 1)
        assert server.metric("grace_ads_put") == 1


def test_a_full_update_in_parts_takes_effect_with_its_last_part(scene: Scene) -> None:
    with scene.serving() as (server, updater):
        parts = {part: update(7, full=True, part=part, parts=3) for part in (1, 2, 3)}
        parts[1].stop["ad"].ids.append(5)
        parts[2].put.extend([*scene.puts(NEW[2], NEW[3]), "{}"])
        parts[3].put.extend(scene.puts(NEW[4]))
        parts[3].remove.append(NEW[2])
        parts[3].wait_visible = True
        updater.apply(1, put=scene.puts(NEW[1]))
        other, stale = update(6, full=True, part=2, parts=2), update(7, full=True, part=2, parts=3)
        stale.put.extend(scene.puts(NEW[1]))
        dropped = (parts[3], parts[1], other, parts[1], stale, parts[2], parts[3], parts[1], stale)
        calls = (*dropped, parts[1], parts[2], parts[2])
        for part in calls:
            outcome = updater.call(part)
            assert outcome.ok, outcome.text
            reply = UpdateAdsResponse.FromString(outcome.reply)
            assert (reply.applied, reply.sequence) == (False, 1)
            assert [each.place for each in reply.refused] == [2] * (part is parts[2])
        reply = UpdateAdsResponse.FromString(updater.call(parts[3]).reply)
        assert (reply.applied, reply.sequence, reply.visible) == (True, 7, 7)
        assert scene.new(server) == {NEW[3], NEW[4]}
        assert updates_of(server).stopped == {"ad": 1}
        assert server.metric("grace_updates_total", result="part") == len(calls)
        assert server.metric("grace_puts_total", result="refused") == calls.count(parts[2])
        server.kill()
    with scene.serving() as (server, _):
        assert scene.new(server) == {NEW[3], NEW[4]}
        assert updates_of(server).stopped == {"ad": 1}


def test_an_ad_in_two_rows_of_other_types_is_refused(scene: Scene) -> None:
    with scene.serving() as (server, updater):
        put = [json_row({**scene.like, "ad_id": NEW[1], "title": title}) for title in ("a", 1)]
        outcome = updater.call(update(1, put=put))
        assert not outcome.ok
        assert outcome.text.startswith(f"put: ad {NEW[1]} is in two rows")
        assert updater.apply(1, put=put[:1], wait_visible=True).visible == 1
        assert scene.new(server) == {NEW[1]}


def test_too_little_memory_leaves_the_old_ads_served_and_the_next_change_tries_again(
    scene: Scene,
) -> None:
    with scene.serving(min_interval_ms=0) as (server, updater):
        before = scene.ads(server)
        with too_little_memory(server):
            reply = updater.apply(1, put=scene.puts(NEW[0]), wait_visible=True)
        assert (reply.applied, reply.visible) == (True, 0)
        assert scene.ads(server) == before
        fault = updates_of(server).changes_fault
        assert fault.startswith("puts and removals: a load needs 0.")
        assert fault.endswith("give the server more memory")
        assert server.metric("grace_apply_failures_total") >= 1
        assert server.wait_log("changes_failed")[0]["fault"] == fault
        assert updater.apply(2, stop={"ad": [5]}, put=scene.puts(NEW[1]), wait_visible=True).visible
        assert scene.new(server) == {NEW[0], NEW[1]}
        assert updates_of(server).changes_fault == ""


def test_a_server_that_requires_a_full_update_is_ready_after_it_with_its_puts(scene: Scene) -> None:
    scene.like = next(iter(scene.rows.values()))
    with scene.serving(require_full=True) as (server, updater), Caller(server.address) as caller:
        server.wait_log("awaits_full")
        assert health(server) == "NOT_SERVING"
        assert updates_of(server).awaits_full
        assert caller.call(scene.request).reason == "not_ready"
        refused = updater.call(update(1, stop={"ad": [7]}))
        assert refused.reason == "update_gap"
        assert "waits for a FULL one; send a FULL update" in refused.text
        with too_little_memory(server):
            assert updater.call(update(9, full=True, put=scene.puts(NEW[0]))).ok
            server.wait_log("changes_failed")
        assert updates_of(server).ads_put == 0
        updater.apply(10, put=scene.puts(NEW[1]))
        server.wait_ready()
        found = updates_of(server)
        assert (found.visible, found.ads_put, found.awaits_full) == (10, 2, False)
        served, ready = (server.log(event)[0]["time"] for event in ("changes_served", "ready"))
        assert served < ready
        assert health(server) == "SERVING"
        assert caller.call(scene.request).ok
    with scene.serving() as (server, _):
        assert not server.log("awaits_full")
        assert updates_of(server).sequence == 10
