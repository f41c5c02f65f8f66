"""A published version that cannot serve: the old one keeps serving, and the file and the cause are
reported everywhere. tests/storage covers every damage of every file.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from grace.index.storage import current_version
from grace.index.storage.folder import version_name
from grace.model.checkpoints.folder import MODEL_YAML, WEIGHTS
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.command import plain_environment
from support.forgery import Fields, forge_array, forge_manifest, read_array_file
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import Operator, operator_of, refused
from support.retrieve_calls import counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

HUGE = 1 << 44  # bytes, more than any machine has

# Publishes a version in a child that is killed in its N-th call; N and the version are a line.
KILLED_PUBLISHER = """
import os, sys
from pathlib import Path
from grace.index.storage import publish
from support.killed_writer import die_in_call
for line in sys.stdin:
    number, version = map(int, line.split())
    child = os.fork()
    if child == 0:
        die_in_call(number)
        publish(Path(sys.argv[1]), version)
        os._exit(0)
    print(os.WIFEXITED(os.waitpid(child, 0)[1]), flush=True)
"""


def flip(version: Path) -> None:
    path = version / "ad_ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def remove(version: Path) -> None:
    (version / "ad_rule.npy").unlink()


def remove_manifest(version: Path) -> None:
    (version / "MANIFEST.json").unlink()


def move_to_another_space(version: Path) -> None:
    forge_manifest(version, lambda fields: fields.update(sid_space="other-1"))


def break_structure(version: Path) -> None:
    rules = read_array_file(version, "ad_rule.npy")
    forge_array(version, "ad_rule.npy", np.full_like(rules, 2**31 - 1))


def grow(version: Path) -> None:
    def change(fields: Fields) -> None:
        entry = next(each for each in fields["files"] if each["file"] == "value_utf8.location.npy")
        entry["bytes"] += HUGE - entry["shape"][0]
        entry["shape"] = [HUGE]

    forge_manifest(version, change)


# By fault: how to cause it, the file that the log names, and pieces of the fault's text.
FAULTS: Mapping[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "damaged": (flip, "ad_ids.npy", ("damaged: its digest is", "; build or publish another")),
    "missing": (remove, "ad_rule.npy", ("missing", "; build or publish another version")),
    "no-manifest": (remove_manifest, "MANIFEST.json", ("missing",)),
    "structure": (break_structure, "ad_rule.npy", ("2147483647",)),
    "too-large": (
        grow,
        "MANIFEST.json",
        (
            "a load needs 17592.",
            "GB of memory, and there is room for ",
            "publish a smaller version",
        ),
    ),
    "other-space": (
        move_to_another_space,
        "model.yaml",
        ("sid_space is 'synth-tiny-1', but the catalogue has 'other-1'; load a checkpoint",),
    ),
    "vanished": (shutil.rmtree, "", (": no version ", " here; it has ")),
}


@dataclass
class Service:
    """A server that follows a root, and that only these tests call."""

    server: ServerProcess
    live: LiveRoot
    operator: Operator
    expected: Mapping[tuple[str, int], RetrieveResponse]

    def assert_serves(self, *versions: int) -> None:
        with counted_calls(self.server) as caller:
            for request in self.live.requests:
                reply = caller.call(message(request)).response
                assert_plain(reply, self.expected)
                assert reply.snapshot_version in versions

    def failures(self) -> float:
        return self.server.metric("grace_snapshot_load_total", result="failed")


@pytest.fixture(scope="module")
def module_service(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    live = LiveRoot.write(tmp_path_factory.mktemp("faults"), serving_files)
    with ServerProcess(live.write_config("faults.yaml")) as server, operator_of(server) as operator:
        yield Service(server, live, operator, live.expected(1, 2))


@pytest.fixture
def service(module_service: Service) -> Iterator[Service]:
    """A server that serves version 1, which CURRENT names."""
    yield module_service
    module_service.live.publish(1)
    module_service.operator.load()
    assert module_service.operator.status().load.fault == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_version_that_cannot_serve_is_reported_everywhere_and_the_old_one_serves_on(
    service: Service, fault: str
) -> None:
    damage, file, pieces = FAULTS[fault]
    server, live, before = service.server, service.live, service.failures()
    logged = len(server.log("load_failed"))
    bad = live.add(like=2)
    folder = live.folder(bad)
    if damage is not shutil.rmtree:
        damage(folder)
    live.publish(bad) if damage is not shutil.rmtree else name_absent(live, bad)
    entry = server.wait_log("load_failed", logged + 1)[-1]
    assert entry["snapshot_version"] == bad
    if file:
        assert entry["file"].endswith(f"/{file}")
        assert entry["file"] in entry["fault"]
    at = 0
    for piece in pieces:
        assert piece in entry["fault"][at:], entry["fault"]
        at = entry["fault"].index(piece, at)
    status = service.operator.status()
    assert (status.load.fault, status.load.failed_version) == (entry["fault"], bad)
    assert (status.snapshot.version, status.load.current_version) == (1, bad)
    service.assert_serves(1)
    sleep(0.5)  # time for some looks, none of which tries again
    assert service.failures() == before + 1
    with refused() as found:
        service.operator.load()  # tried again on request, it fails in the same words
    assert found[0].reason == "load_failed"
    text = found[0].text.partition(" room for ")[0]  # the room is measured anew
    assert text == entry["fault"].partition(" room for ")[0]
    assert service.failures() == before + 2
    shutil.rmtree(folder, ignore_errors=True)


def name_absent(live: LiveRoot, version: int) -> None:
    """Publish a version that is gone already: a quick server would load one that goes later."""
    shutil.rmtree(live.folder(version))
    (live.root / "new").write_text(f"{version_name(version)}\n")
    (live.root / "new").rename(live.root / "CURRENT")


@pytest.mark.parametrize("file", [MODEL_YAML, WEIGHTS])
def test_a_checkpoint_with_a_pipe_in_place_of_a_file_fails_and_later_loads_work(
    service: Service, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(service.live.files.checkpoint, folder)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with refused() as found:
        service.operator.load(checkpoint=folder)
    assert found[0].reason == "load_failed"
    assert f"{folder / file}: cannot be read: not a regular file; " in found[0].text
    service.live.publish(2)
    service.server.wait_until(
        lambda: service.server.metric("grace_snapshot_version") == 2, "it follows"
    )
    service.assert_serves(2)


def test_a_version_that_is_repaired_and_published_again_serves(service: Service) -> None:
    server, live = service.server, service.live
    bad = live.add(like=2)
    whole = (live.folder(bad) / "ad_ids.npy").read_bytes()
    flip(live.folder(bad))
    logged = len(server.log("load_failed"))
    live.publish(bad)
    server.wait_log("load_failed", logged + 1)
    (live.folder(bad) / "ad_ids.npy").write_bytes(whole)
    live.publish(bad)
    server.wait_until(lambda: server.metric("grace_snapshot_version") == bad, "it serves")
    assert service.operator.status().load.fault == ""


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"7\n", "expected 20 digits"), (None, "missing; make it anew with `grace publish ROOT VER")],
)
def test_a_current_that_cannot_be_read_or_is_gone_is_reported_and_changes_nothing(
    service: Service, content: bytes | None, fault: str
) -> None:
    server, path = service.server, service.live.root / "CURRENT"
    logged, failures = len(server.log("load_failed")), service.failures()
    if content is None:
        path.unlink()
    else:  # at once: a look in the middle of a write would find something else
        (path.parent / "new").write_bytes(content)
        (path.parent / "new").rename(path)
    entry = server.wait_log("load_failed", logged + 1)[-1]
    assert fault in entry["fault"]
    load = service.operator.status().load
    assert (load.fault, load.failed_version, load.current_version) == (entry["fault"], 0, 0)
    assert load.fault.startswith(f"snapshots: {path}: ")
    sleep(0.5)  # time for some looks, none of which reports it again
    assert service.failures() == failures + 1
    service.assert_serves(1)


def test_a_version_that_vanishes_while_it_is_read_fails_or_serves_whole(service: Service) -> None:
    server, live = service.server, service.live
    for number in range(5):
        vanishing = live.add(like=2)
        begun = len(server.log("loading"))
        ended = len(server.log("load_failed")) + len(server.log("swapped"))
        live.publish(vanishing)
        server.wait_log("loading", begun + 1)
        sleep(number * 0.005)
        shutil.rmtree(live.folder(vanishing))
        server.wait_until(
            lambda ended=ended: (  # type: ignore[misc]
                len(server.log("load_failed")) + len(server.log("swapped")) > ended
            ),
            "the load has ended",
        )
        live.publish(1)
        service.operator.load()
        service.assert_serves(1)


def test_a_publisher_killed_at_any_step_leaves_the_server_with_the_old_or_the_new_version(
    service: Service,
) -> None:
    server, live = service.server, service.live
    failures = service.failures()
    publisher = subprocess.Popen(
        [sys.executable, "-c", KILLED_PUBLISHER, str(live.root)],
        env=plain_environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    seen, survived, number = set(), False, 0
    while not survived:
        number += 1
        publisher.stdin.write(f"{number} 2\n")
        publisher.stdin.flush()
        survived = publisher.stdout.readline() == "True\n"
        current = current_version(live.root)
        seen.add(current)
        server.wait_until(
            lambda current=current: (  # type: ignore[misc]
                server.metric("grace_snapshot_version") == current
            ),
            "it follows",
        )
        live.publish(1)
        service.operator.load()
    assert seen == {1, 2}
    assert number > 5
    publisher.communicate(timeout=60)
    service.assert_serves(1)
    assert service.failures() == failures
