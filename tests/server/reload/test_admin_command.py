"""`grace admin` against a real server, also while another sender updates ads."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from grace.client import AdminClient
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from support.forgery import forge_manifest
from support.in_process import printed
from support.live_snapshots import LiveRoot
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

TIMEOUT = 60.0


@pytest.fixture(scope="module")
def live(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> LiveRoot:
    return LiveRoot.write(tmp_path_factory.mktemp("admin"), serving_files)


@pytest.fixture(scope="module")
def server(live: LiveRoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state = str(tmp_path_factory.mktemp("state"))
    with ServerProcess(live.write_config("admin.yaml", state_dir=state)) as running:
        yield running


def admin(server: ServerProcess | str, *arguments: str | int) -> str:
    """Run a sub-command, which must succeed; return its output."""
    address = server if isinstance(server, str) else server.admin
    return printed("admin", *map(str, arguments), "--address", address)


def shown(server: ServerProcess) -> dict[str, str]:
    """Return the lines of the status by their first word."""
    lines = admin(server, "status").splitlines()
    return {name: " ".join(text) for name, *text in map(str.split, lines)}


def test_an_operator_sees_and_changes_what_is_served(server: ServerProcess, live: LiveRoot) -> None:
    live.publish(2)
    assert re.search(r"serve[sd] snapshot 2, checkpoint \w{16}$", admin(server, "load").strip())
    assert "already served snapshot 2" in admin(server, "load", 2)
    seen = shown(server)
    assert seen["server"].startswith("serving, ")
    assert re.match(
        r"2 \(\d{4}-.*Z, synth-tiny-1, mode exact, [\d,]+ SIDs, [\d,]+ ads\)$", seen["snapshot"]
    )
    assert seen["CURRENT"] == "2"
    assert not {"pinned", "loading", "failing", "stopped"} & set(seen)
    assert admin(server, "stops") == "nothing is stopped\n"
    assert json.loads(admin(server, "stops", "--json")) == {}

    assert admin(server, "rollback").strip() == f"{server.admin} serves 1, pinned; before: 2"
    assert shown(server)["pinned"] == "1, until CURRENT exceeds 2 (grace admin unpin)"
    bad = live.add(like=2)
    (live.folder(bad) / "ad_ids.npy").unlink()
    live.publish(bad)
    server.wait_log("load_failed")
    failing = shown(server)
    assert failing["CURRENT"] == str(bad)
    assert failing["failing"].startswith(f"{bad}: snapshots: {live.folder(bad)}/ad_ids.npy: missi")
    assert failing["snapshot"].startswith("1 (")
    live.publish(2)
    assert json.loads(admin(server, "unpin", "--json")) == {
        "snapshot_version": "2",
        "previous_pin": "1",  # CURRENT had exceeded the pin, but with a version that cannot serve
    }
    admin(server, "rollback", 1)
    assert admin(server, "unpin").strip() == f"{server.admin} serves 2; it was pinned to 1"
    status = json.loads(admin(server, "status", "--json"))
    assert (status["snapshot"]["version"], status["load"]["pinned_version"]) == ("2", "0")


@contextmanager
def others_update(server: ServerProcess) -> Iterator[None]:
    """Send updates of another ad all the time, as a second sender does."""
    ended = threading.Event()

    def send() -> None:
        with AdminClient(server.admin) as client:
            while not ended.is_set():
                update = UpdateAdsRequest(kind=UpdateAdsRequest.KIND_DELTA)
                update.sequence = client.status(TIMEOUT).updates.sequence + 1
                update.weights.add(ad_id=10**15, weight=1.0)
                client.update_ads(update, TIMEOUT)
                ended.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            ended.set()
            sending.result()


def stopped_ids(server: ServerProcess) -> dict[str, int]:
    stopped = json.loads(admin(server, "status", "--json"))["updates"]["stopped"]
    return {level: int(count) for level, count in stopped.items()}


def test_ids_are_stopped_while_another_sender_updates_ads(server: ServerProcess) -> None:
    before = stopped_ids(server)
    with others_update(server):
        said = admin(server, "stop", "ad", 5, 7, 9)
        now = stopped_ids(server)
    assert re.match(
        r"stopped; stopped ads of the served snapshot: \d+, before 0 \(update \d+\)\n"
        r"not in the served snapshot, so only a later one may have them: ad 5",
        said,
    )
    assert now == before | {"ad": before.get("ad", 0) + 3}
    listed = admin(server, "stops").splitlines()
    assert [f"ad {each}" for each in (5, 7, 9)] == [each for each in listed if len(each) == 4]
    as_json = json.loads(admin(server, "stops", "--json"))
    assert {level: len(each) for level, each in as_json.items()} == now
    admin(server, "resume", "ad", 5, 7, 9)
    assert stopped_ids(server) == before


def test_a_server_that_has_fewer_updates_than_its_snapshot_says_so(
    live: LiveRoot, tmp_path: Path
) -> None:
    ahead = live.add(like=1)
    forge_manifest(live.folder(ahead), lambda fields: fields.update(updates_watermark=7))
    snapshots = live.folder(ahead)
    config = live.write_config("b.yaml", snapshots=str(snapshots), state_dir=str(tmp_path))
    with ServerProcess(config) as server:
        assert shown(server)["behind"] == (
            "the served snapshot has the updates up to 7, this server only up to 0: send a FULL "
            "update"
        )
        with AdminClient(server.admin) as client:
            full = UpdateAdsRequest.KIND_FULL
            client.update_ads(UpdateAdsRequest(sequence=7, kind=full), TIMEOUT)
        assert "behind" not in shown(server)
        (behind,) = server.log("updates_behind")
        assert (behind["watermark"], behind["sequence"]) == (7, 0)
        assert not server.log("no_state_dir")
