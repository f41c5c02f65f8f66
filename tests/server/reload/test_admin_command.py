"""`grace admin` against a real server, and its updates among those of others."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grace.proto.retrieval_pb2 import (
    GetStatusRequest,
    GetStatusResponse,
    UpdateAdsRequest,
    UpdateAdsResponse,
    UpdatesStatus,
)
from support.in_process import invoke_grace
from support.live_snapshots import LiveRoot
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


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
    done = invoke_grace("admin", *map(str, arguments), "--address", address)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def shown(server: ServerProcess) -> dict[str, str]:
    """The lines of the status by their first word."""
    lines = admin(server, "status").splitlines()
    return {name: " ".join(text) for name, *text in map(str.split, lines)}


def test_an_operator_sees_and_changes_what_is_served(server: ServerProcess, live: LiveRoot) -> None:
    live.publish(2)
    assert re.search(r"serve[sd] snapshot 2, checkpoint \w{16}$", admin(server, "load").strip())
    assert "already served snapshot 2" in admin(server, "load", 2)
    seen = shown(server)
    assert seen["server"].startswith("serving, ")
    assert re.match(r"2 \(\d{4}-.*Z, synth-tiny-1, [\d,]+ SIDs, [\d,]+ ads\)$", seen["snapshot"])
    assert seen["CURRENT"] == "2"
    assert not {"pinned", "loading", "failing", "stopped"} & set(seen)

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
        "previous_pin": "0",  # CURRENT had exceeded the pin
    }
    admin(server, "rollback", 1)
    assert admin(server, "unpin").strip() == f"{server.admin} serves 2; it was pinned to 1"
    status = json.loads(admin(server, "status", "--json"))
    assert (status["snapshot"]["version"], status["load"]["pinned_version"]) == ("2", "0")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("load", "4711"), 2, "FAILED_PRECONDITION (load_failed): snapshots: "),
        (("load", "--checkpoint", "here"), 2, "INVALID_ARGUMENT (invalid_field): checkpoint: give"),
        (("rollback", "4711"), 2, "FAILED_PRECONDITION (load_refused): snapshot_version: 4711"),
        (("status", "--timeout", "inf"), 2, "--timeout: give a number of seconds"),
    ],
)
def test_a_mistake_is_one_line(
    server: ServerProcess, arguments: tuple[str, ...], code: int, error: str
) -> None:
    done = invoke_grace("admin", *arguments, "--address", server.admin)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {error}")
    assert done.stderr.count("\n") == 1


def test_the_address_of_clients_is_no_address_of_admin(server: ServerProcess) -> None:
    done = invoke_grace("admin", "status", "--address", server.address)
    assert done.exit_code == 1
    assert "does not serve Admin; it may be a server's address for clients" in done.stderr


class Updates:
    """Takes updates as the API says; `others` of them come right after a look at the status."""

    def __init__(self, others: int) -> None:
        self.sequence, self.others = 41, others
        self.applied: list[UpdateAdsRequest] = []

    def status(self, request: GetStatusRequest, context: Any) -> GetStatusResponse:  # noqa: ARG002
        updates = UpdatesStatus(sequence=self.sequence)
        if self.others:
            self.others -= 1
            self.sequence += 1
        return GetStatusResponse(updates=updates)

    def update(self, request: UpdateAdsRequest, context: Any) -> UpdateAdsResponse:
        if request.sequence > self.sequence + 1:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a gap")
        applied = request.sequence == self.sequence + 1
        if applied:
            self.sequence += 1
            self.applied.append(request)
        return UpdateAdsResponse(sequence=self.sequence, applied=applied, ads_stopped=1234)


@contextmanager
def served(updates: Updates) -> Iterator[str]:
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    methods: dict[str, Any] = {
        "GetStatus": grpc.unary_unary_rpc_method_handler(
            updates.status, GetStatusRequest.FromString, GetStatusResponse.SerializeToString
        ),
        "UpdateAds": grpc.unary_unary_rpc_method_handler(
            updates.update, UpdateAdsRequest.FromString, UpdateAdsResponse.SerializeToString
        ),
    }
    handler: Any = grpc.method_handlers_generic_handler("grace.v1.Admin", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


def test_a_stop_and_a_resume_are_the_next_update_whoever_else_sends_some() -> None:
    for others in (0, 3):
        updates = Updates(others)
        with served(updates) as address:
            assert admin(address, "stop", "advertiser", 7, 9) == (
                f"stopped; 1,234 ads are stopped in all (update {42 + others})\n"
            )
            reply = json.loads(admin(address, "resume", "ad", 5, "--json"))
        assert reply["sequence"] == str(43 + others)
        stop, resume = updates.applied
        assert (stop.kind, resume.kind) == (UpdateAdsRequest.KIND_DELTA,) * 2
        assert {level: list(ids.ids) for level, ids in stop.stop.items()} == {"advertiser": [7, 9]}
        assert {level: list(ids.ids) for level, ids in resume.resume.items()} == {"ad": [5]}
        assert not stop.resume
        assert not resume.stop


def test_a_stop_that_never_gets_its_turn_fails_in_one_line() -> None:
    with served(Updates(others=1000)) as address:
        done = invoke_grace("admin", "stop", "ad", "7", "--address", address)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ABORTED: other updates took the sequence number 10 times")


def test_an_id_that_cannot_be_is_refused_before_any_call() -> None:
    for bad in ("-1", str(2**63), "x"):
        assert invoke_grace("admin", "stop", "ad", "--", bad).exit_code == 2
