"""What cannot serve: the old pair serves on, and the file and the cause are reported everywhere.

tests/storage covers every damage of every file.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import torch

from grace.index.storage.folder import version_name
from grace.index.storage.versions import some_of, versions
from grace.model.checkpoints.folder import WEIGHTS
from grace.model.checkpoints.init import write_random
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.forgery import Fields, forge_array, forge_manifest, read_array_file
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import Operator, Refusal, operator_of, refused
from support.retrieve_calls import counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec

pytestmark = pytest.mark.subprocess

HUGE = 1 << 44  # bytes, more than any machine has


@dataclass
class Service:
    """A server that follows a root, and that only these tests call."""

    server: ServerProcess
    live: LiveRoot
    operator: Operator
    expected: Mapping[tuple[str, int], RetrieveResponse]

    def assert_serves(self, version: int) -> None:
        with counted_calls(self.server) as caller:
            for request in self.live.requests:
                reply = caller.call(message(request)).response
                assert_plain(reply, self.expected)
                assert reply.snapshot_version == version

    def failures(self) -> float:
        return self.server.metric("grace_snapshot_load_total", result="failed")


@pytest.fixture(scope="module")
def module_service(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("faults")
    live = LiveRoot.write(folder, serving_files)
    config = live.write_config("faults.yaml", state_dir=str(folder / "state"))
    with ServerProcess(config) as server, operator_of(server) as operator:
        yield Service(server, live, operator, live.expected(1, 2))


@pytest.fixture
def service(module_service: Service) -> Iterator[Service]:
    """A server that serves version 1, which CURRENT names."""
    yield module_service
    module_service.live.publish(1)
    module_service.operator.unpin()
    module_service.operator.load()
    assert module_service.operator.status().load.fault == ""


def flip(version: Path) -> None:
    path = version / "ad_ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def break_structure(version: Path) -> None:
    rules = read_array_file(version, "ad_rule.npy")
    forge_array(version, "ad_rule.npy", np.full_like(rules, 2**31 - 1))


def grow(version: Path) -> None:
    def change(fields: Fields) -> None:
        entry = next(each for each in fields["files"] if each["file"] == "value_utf8.location.npy")
        entry["bytes"] += HUGE - entry["shape"][0]
        entry["shape"] = [HUGE]

    forge_manifest(version, change)


Damage = Callable[[Path], object]
# By fault: how to cause it, the file that the log names, and pieces of the fault's text in order.
VERSIONS: Mapping[str, tuple[Damage, str, tuple[str, ...]]] = {
    "damaged": (flip, "ad_ids.npy", ("damaged: its digest is", "; build or publish another")),
    "missing": (
        lambda version: (version / "ad_rule.npy").unlink(),
        "ad_rule.npy",
        ("missing", "; build or publish another version"),
    ),
    "structure": (break_structure, "ad_rule.npy", ("2147483647",)),
    "too-large": (
        grow,
        "MANIFEST.json",
        ("a load needs 17592.", "GB of memory, and there is room for ", "publish a smaller versi"),
    ),
    "other-space": (
        lambda version: forge_manifest(version, lambda each: each.update(sid_space="other-1")),
        "model.yaml",
        ("sid_space is 'synth-tiny-1', but the catalogue has 'other-1'; load a checkpoint",),
    ),
    "vanished": (shutil.rmtree, "", (": no version ", " here; it has ")),
}


def publish_blindly(live: LiveRoot, content: bytes | None) -> None:
    """Replace CURRENT at once: a look in the middle of a write would find something else."""
    current, new = live.root / "CURRENT", live.root / "new"
    if content is None:
        current.unlink()
    else:
        new.write_bytes(content)
        new.rename(current)


@pytest.mark.parametrize("fault", VERSIONS)
def test_a_version_that_cannot_serve_is_reported_everywhere_and_the_old_one_serves_on(
    service: Service, fault: str
) -> None:
    damage, file, pieces = VERSIONS[fault]
    server, live, before = service.server, service.live, service.failures()
    logged, bad = len(server.log("load_failed")), live.add(like=2)
    damage(live.folder(bad))
    publish_blindly(live, f"{version_name(bad)}\n".encode())
    entry = server.wait_log("load_failed", logged + 1)[-1]
    assert entry["snapshot_version"] == bad
    assert not file or (entry["file"].endswith(f"/{file}") and entry["file"] in entry["fault"])
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
    shutil.rmtree(live.folder(bad), ignore_errors=True)


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"7\n", "expected 20 digits"), (None, "missing; make it anew with `grace publish ROOT VER")],
)
def test_a_current_that_cannot_be_read_or_is_gone_is_reported_and_changes_nothing(
    service: Service, content: bytes | None, fault: str
) -> None:
    server, failures = service.server, service.failures()
    logged = len(server.log("load_failed"))
    publish_blindly(service.live, content)
    entry = server.wait_log("load_failed", logged + 1)[-1]
    assert fault in entry["fault"]
    load = service.operator.status().load
    assert (load.fault, load.failed_version, load.current_version) == (entry["fault"], 0, 0)
    assert load.fault.startswith(f"snapshots: {service.live.root}/CURRENT: ")
    sleep(0.5)  # time for some looks, none of which reports it again
    assert service.failures() == failures + 1
    service.assert_serves(1)


def refusal_of(call: Callable[[], object]) -> Refusal:
    with refused() as found:
        call()
    return found[0]


def pipe_in_place_of_the_weights(folder: Path, files: ServingFiles) -> Path:
    shutil.copytree(files.checkpoint, folder)
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)
    return folder


def other_space(folder: Path, _: ServingFiles) -> Path:
    write_random(replace(model_spec(), sid_space="other-1"), folder, 1, torch.float32)
    return folder


Make = Callable[[Path, ServingFiles], object]
CHECKPOINTS: Mapping[str, tuple[Make, str, tuple[str, ...]]] = {
    "other space": (other_space, "load_failed", ("model.yaml", "sid_space", "'other-1'")),
    "relative": (lambda *_: "relative", "invalid_field", ("not an absolute path; give",)),
    "a pipe for the weights": (
        pipe_in_place_of_the_weights,
        "load_failed",
        (f"/{WEIGHTS}: cannot be read: not a regular file; ",),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_cannot_serve_is_refused_and_later_loads_work(
    service: Service, tmp_path: Path, name: str
) -> None:
    make, reason, pieces = CHECKPOINTS[name]
    checkpoint = make(tmp_path / "checkpoint", service.live.files)
    found = refusal_of(lambda: service.operator.load(checkpoint=checkpoint))
    assert found.reason == reason
    assert found.text.startswith("checkpoint: ")
    assert all(piece in found.text for piece in pieces)
    assert service.operator.load(2).changed
    service.assert_serves(2)


def test_versions_that_an_operator_mistypes_are_refused_and_are_no_failed_loads(
    service: Service,
) -> None:
    operator, root, failures = service.operator, service.live.root, service.failures()
    absent = f"snapshot_version: 4711: not in {root}, which has {some_of(versions(root))}; name one"
    none = f"1 is served, and {root} has no version below it, only {some_of(versions(root))}; copy"
    for call, text in (
        (lambda: operator.load(4711), absent),
        (lambda: operator.load(4711, "/no/such/folder"), absent),
        (lambda: operator.roll_back(4711), absent),
        *(
            (lambda version=version: operator.roll_back(version), f"_version: {version}: {none}")
            for version in (0, 1, 2)
        ),
    ):
        found = refusal_of(call)
        assert (found.code.name, found.reason) == ("FAILED_PRECONDITION", "load_refused")
        assert text in found.text
    load = operator.status().load
    assert (load.fault, load.pinned_version, service.failures()) == ("", 0, failures)
    service.assert_serves(1)
