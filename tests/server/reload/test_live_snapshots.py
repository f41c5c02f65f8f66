"""SIGHUP, and the pin of a rollback at the start. test_any_sequence.py has all that follows."""

import signal
from pathlib import Path
from time import sleep

import pytest

from grace.server.reload.decision import Pin
from grace.server.reload.pin_file import PinFile
from support.live_snapshots import LiveRoot
from support.operators import operator_of, refused
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


@pytest.fixture
def live(serving_files: ServingFiles, tmp_path: Path) -> LiveRoot:
    return LiveRoot.write(tmp_path, serving_files)


def test_sighup_looks_at_once_and_never_ends_the_process(live: LiveRoot) -> None:
    config = live.write_config("hup.yaml", watch_seconds=0)
    with ServerProcess(config, ready=False) as server:
        server.wait_log("listening")
        server.signal(signal.SIGHUP)
        server.wait_ready()
        live.publish(2)
        assert server.metric("grace_snapshot_version") == 1
        server.signal(signal.SIGHUP)
        server.wait_until(lambda: server.metric("grace_snapshot_version") == 2, "it follows")
        assert server.log("swapped")[-1]["previous_version"] == 1
        with operator_of(server) as operator, refused() as found:
            operator.roll_back()
        assert found[0].reason == "load_refused"
        assert found[0].text.startswith("state_dir: not set")
        server.terminate()
        while server.running:
            server.signal(signal.SIGHUP)
            sleep(0.001)
        assert server.wait() == 0


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
