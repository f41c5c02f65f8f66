"""A running server follows CURRENT and its operators."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest
import torch

from grace.index.storage.versions import some_of, versions
from grace.model.checkpoints.checkpoint import checkpoint_id
from grace.model.checkpoints.init import write_random
from grace.server.reload.decision import Pin
from grace.server.reload.pin_file import PinFile
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import Operator, operator_of, refused
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec

pytestmark = pytest.mark.subprocess


class Client:
    """Calls a server, and compares each answer with the plain one."""

    def __init__(self, server: ServerProcess, live: LiveRoot) -> None:
        self._caller = Caller(server.address)
        self._live = live
        self._expected = live.expected(1, 2)

    def version(self) -> int:
        """Return the version that answers now."""
        seen = set()
        for request in self._live.requests:
            reply = self._caller.call(message(request)).response
            assert_plain(reply, self._expected)
            seen.add(reply.snapshot_version)
        (version,) = seen
        return version

    def close(self) -> None:
        self._caller.close()


@pytest.fixture(scope="module")
def live(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> LiveRoot:
    return LiveRoot.write(tmp_path_factory.mktemp("live"), serving_files)


@pytest.fixture(scope="module")
def running(
    live: LiveRoot, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Client, Operator]]:
    state = tmp_path_factory.mktemp("state")
    config = live.write_config("live.yaml", state_dir=str(state), warm_up=str(live.files.warm_up))
    with ServerProcess(config) as server, operator_of(server) as operator:
        client = Client(server, live)
        yield server, client, operator
        client.close()


@pytest.fixture
def server(
    running: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> Iterator[tuple[ServerProcess, Client, Operator]]:
    """A server that follows CURRENT, which names version 1."""
    _, _, operator = running
    yield running
    operator.unpin()
    live.publish(1)
    operator.load()


def serves(server: ServerProcess, version: int) -> None:
    server.wait_until(
        lambda: server.metric("grace_snapshot_version") == version, f"version {version} serves"
    )


def test_a_published_version_reaches_a_running_server_whether_it_is_newer_or_older(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    process, client, operator = server
    before = process.metric("grace_snapshot_load_total", result="ok")
    ages = process.metric("grace_snapshot_age_seconds")
    assert client.version() == 1
    for version in (2, 1, 2):
        live.publish(version)
        serves(process, version)
        assert client.version() == version
        status = operator.status()
        assert status.snapshot.version == status.load.current_version == version
        assert status.load.fault == ""
    assert process.metric("grace_snapshot_load_total", result="ok") == before + 3
    assert process.metric("grace_snapshot_age_seconds") != ages
    assert process.log("swapped")[-1]["previous_version"] == 1


def test_load_serves_when_it_returns_and_says_what_it_changed(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    _, client, operator = server
    live.publish(2)
    reply = operator.load()
    assert (reply.snapshot_version, client.version()) == (2, 2)
    assert not operator.load().changed
    reply = operator.load(1)
    assert (reply.snapshot_version, reply.changed, client.version()) == (1, True, 1)
    assert not operator.load(1).changed
    # CURRENT still names 2: what an operator has loaded stays until the next publish.
    assert operator.status().load.current_version == 2
    assert client.version() == 1
    live.publish(2)
    serves(server[0], 2)


def test_a_rollback_pins_until_current_exceeds_the_version_that_it_left(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    process, client, operator = server
    live.publish(2)
    operator.load()
    reply = operator.roll_back()
    assert (reply.snapshot_version, reply.previous_version) == (1, 2)
    assert client.version() == 1
    load = operator.status().load
    assert (load.pinned_version, load.pinned_until_above) == (1, 2)
    assert process.metric("grace_pinned") == 1
    assert operator.roll_back(1).previous_version == 1  # once more, as a retry does
    bad = live.add(like=2)
    (live.folder(bad) / "ad_weight.npy").unlink()
    live.publish(bad)
    process.wait_until(lambda: operator.status().load.failed_version == bad, "the load fails")
    assert operator.status().load.pinned_version == 1  # until a newer version serves
    assert operator.load(1).snapshot_version == 1
    assert operator.status().load.failed_version == bad  # CURRENT still names it
    live.publish(2)
    assert not operator.load().changed
    assert client.version() == 1
    with refused() as found:
        operator.load(2)
    assert found[0].reason == "load_refused"
    assert "a rollback has pinned version 1; unpin first" in found[0].text
    newer = live.add(like=2)
    live.publish(newer)
    serves(process, newer)
    assert operator.status().load.pinned_version == 0
    process.wait_until(lambda: process.metric("grace_pinned") == 0, "the pin has ended")


def test_a_rollback_that_went_too_far_is_corrected_by_another(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    _, client, operator = server
    newest = live.add(like=2)
    live.publish(newest)
    operator.load()
    operator.roll_back(1)
    reply = operator.roll_back(2)
    assert (reply.snapshot_version, reply.previous_version) == (2, 1)
    assert client.version() == 2
    load = operator.status().load
    assert (load.pinned_version, load.pinned_until_above) == (2, newest)
    with refused() as found:
        operator.roll_back(newest)
    assert found[0].text.startswith(f"snapshot_version: {newest}: a rollback left {newest}, and ")


def test_unpin_follows_current_again(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    _, client, operator = server
    assert operator.unpin().previous_pin == 0
    live.publish(2)
    operator.load()
    operator.roll_back(1)
    (live.root / "CURRENT").write_text("junk")
    with refused() as found:
        operator.unpin()
    assert found[0].reason == "load_failed"
    assert operator.status().load.pinned_version == 1  # a call that fails changes nothing
    live.publish(2)
    reply = operator.unpin()
    assert (reply.snapshot_version, reply.previous_pin) == (2, 1)
    assert client.version() == 2


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_rollback_to_a_version_that_is_not_older_is_refused(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot, version: int
) -> None:
    with refused() as found:
        server[2].roll_back(version)
    assert found[0].code.name == "FAILED_PRECONDITION"
    assert found[0].text.startswith(
        f"snapshot_version: {version}: 1 is served, and {live.root} has no version below it, only "
    )
    assert "; copy an older one there, or load another one" in found[0].text
    assert server[2].status().load.pinned_version == 0


def test_a_rollback_to_a_version_that_is_not_there_names_those_that_are(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot
) -> None:
    with refused() as found:
        server[2].roll_back(4711)
    assert (found[0].code.name, found[0].reason) == ("FAILED_PRECONDITION", "load_refused")
    assert found[0].text == (
        f"snapshot_version: 4711: not in {live.root}, which has {some_of(versions(live.root))}; "
        "name one that is there"
    )
    assert server[2].status().load.pinned_version == 0


@pytest.mark.parametrize("checkpoint", ["", "/no/such/folder"])
def test_a_version_that_an_operator_mistypes_is_refused_and_is_no_failed_load(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot, checkpoint: str
) -> None:
    process, client, operator = server
    failures = process.metric("grace_snapshot_load_total", result="failed")
    with refused() as found:
        operator.load(4711, checkpoint)
    assert (found[0].code.name, found[0].reason) == ("FAILED_PRECONDITION", "load_refused")
    assert found[0].text.startswith(f"snapshot_version: 4711: not in {live.root}, which has ")
    assert operator.status().load.fault == ""
    assert process.metric("grace_snapshot_load_total", result="failed") == failures
    assert client.version() == 1


def test_a_checkpoint_swaps_alone_or_with_a_snapshot(
    server: tuple[ServerProcess, Client, Operator], live: LiveRoot, tmp_path: Path
) -> None:
    process, client, operator = server
    first, second = live.files.checkpoint, tmp_path / "second"
    write_random(model_spec(), second, seed=7, dtype=torch.float32)
    reply = operator.load(checkpoint=second)
    assert (reply.snapshot_version, reply.checkpoint, reply.changed) == (
        1,
        checkpoint_id(second),
        1,
    )
    assert operator.status().model.checkpoint == checkpoint_id(second)
    assert not operator.load(checkpoint=second).changed
    live.publish(2)
    serves(process, 2)  # with the checkpoint that an operator has loaded
    assert operator.status().model.checkpoint == checkpoint_id(second)
    reply = operator.load(1, first)
    assert (reply.snapshot_version, reply.checkpoint) == (1, checkpoint_id(first))
    assert client.version() == 1


def test_a_checkpoint_of_another_sid_space_or_of_nothing_is_refused(
    server: tuple[ServerProcess, Client, Operator], tmp_path: Path
) -> None:
    _, client, operator = server
    other = tmp_path / "other"
    write_random(replace(model_spec(), sid_space="other-1"), other, 1, torch.float32)
    for checkpoint, reason, texts in (
        (other, "load_failed", ("checkpoint: ", "model.yaml", "sid_space", "'other-1'")),
        (tmp_path / "none", "load_failed", ("checkpoint: ", "none/model.yaml", ";")),
        ("relative", "invalid_field", ("checkpoint: not an absolute path; give",)),
    ):
        with refused() as found:
            operator.load(checkpoint=checkpoint)
        assert found[0].reason == reason
        for text in texts:
            assert text in found[0].text
    assert client.version() == 1


def test_sighup_looks_at_once_and_never_ends_the_process(
    live: LiveRoot,
) -> None:
    config = live.write_config("hup.yaml", watch_seconds=0)
    with ServerProcess(config, ready=False) as server:
        server.wait_log("listening")
        server.signal(signal.SIGHUP)
        server.wait_ready()
        live.publish(2)
        assert server.metric("grace_snapshot_version") == 1
        server.signal(signal.SIGHUP)
        serves(server, 2)
        live.publish(1)
        with operator_of(server) as operator, refused() as found:
            operator.roll_back()
        assert found[0].reason == "load_refused"
        assert found[0].text.startswith("state_dir: not set")
        server.terminate()
        while server.running:
            server.signal(signal.SIGHUP)
            sleep(0.001)
        assert server.wait() == 0
    live.publish(1)


def test_a_pin_outlasts_a_restart_and_a_kill(live: LiveRoot, tmp_path: Path) -> None:
    config = live.write_config("pinned.yaml", state_dir=str(tmp_path / "state"))
    live.publish(2)
    with ServerProcess(config) as server, operator_of(server) as operator:
        operator.roll_back(1)
        server.kill()
    with ServerProcess(config) as server, operator_of(server) as operator:
        assert operator.status().snapshot.version == operator.status().load.pinned_version == 1
        server.wait_until(lambda: server.metric("grace_pinned") == 1, "the pin is reported")
        assert server.log("pinned")[0]["snapshot_version"] == 1
        newer, bad = live.add(like=2), live.add(like=2)
        (live.folder(bad) / "ad_weight.npy").unlink()
        server.terminate()
        assert server.wait() == 0
    live.publish(bad)
    with ServerProcess(config) as server, operator_of(server) as operator:
        load = operator.status().load
        assert operator.status().snapshot.version == load.pinned_version == 1
        assert load.failed_version == bad
        assert "ad_weight.npy" in load.fault
    live.publish(newer)
    with ServerProcess(config) as server, operator_of(server) as operator:
        assert operator.status().snapshot.version == newer
        assert operator.status().load.pinned_version == 0
    live.publish(1)


@pytest.mark.parametrize("content", [b"junk", None])
def test_a_pinned_server_starts_without_a_current_that_can_be_read_and_says_so(
    live: LiveRoot, tmp_path: Path, content: bytes | None
) -> None:
    current = live.root / "CURRENT"
    PinFile(tmp_path).write(Pin(1, 2))
    current.unlink() if content is None else current.write_bytes(content)
    config = live.write_config("no_current.yaml", state_dir=str(tmp_path), watch_seconds=0)
    with ServerProcess(config) as server, operator_of(server) as operator:
        found = operator.status()
        assert found.snapshot.version == found.load.pinned_version == 1
        assert found.load.fault.startswith(f"snapshots: {current}: ")
        assert [each["fault"] for each in server.log("load_failed")] == [found.load.fault]
        assert server.metric("grace_snapshot_load_total", result="failed") == 1
        live.publish(2)
        server.signal(signal.SIGHUP)
        server.wait_until(lambda: not operator.status().load.fault, "CURRENT is read again")
        found = operator.status()
        assert (found.snapshot.version, found.load.current_version) == (1, 2)
        newer = live.add(like=2)
        live.publish(newer)
        assert operator.load().snapshot_version == newer
    live.publish(1)


def test_a_pinned_version_that_was_deleted_and_a_damaged_pin_end_the_start(
    live: LiveRoot, tmp_path: Path
) -> None:
    file = PinFile(tmp_path)
    config = live.write_config("gone.yaml", state_dir=str(tmp_path))
    file.write(Pin(4711, 4712))
    with ServerProcess(config, ready=False) as server:
        assert server.wait() == 2
    assert f"state_dir: {file.path} pins version 4711, which cannot be" in server.lines[-1]
    assert "publish a version above 4712, or remove the file to follow CURRENT" in server.lines[-1]
    file.path.write_text("4711\n")
    with ServerProcess(config, ready=False) as server:
        assert server.wait() == 2
    assert f"state_dir: {file.path}: is damaged" in server.lines[-1]
