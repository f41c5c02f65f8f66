"""In any order of publishes, loads, rollbacks, updates and kills, a server serves what is plain.

Hypothesis draws the steps of `support.state_machine`; `support.plain_server` has the rules. What
cannot serve is reported everywhere, and the old pair serves on. tests/storage covers every damage
of every file.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from grace.index.storage.versions import some_of, versions
from grace.model.checkpoints.folder import WEIGHTS
from grace.model.checkpoints.init import write_random
from support.forgery import Fields, forge_manifest
from support.operators import refused
from support.plain_server import Answers
from support.serving_files import ServingFiles, model_spec
from support.state_machine import JUNK, NOWHERE, Machine

pytestmark = pytest.mark.subprocess

HUGE = 1 << 44  # bytes, more than any machine has


@pytest.fixture(scope="module")
def answers(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(serving_files, tmp_path_factory.mktemp("answers"))


@pytest.fixture
def machine(serving_files: ServingFiles, answers: Answers) -> Iterator[Machine]:
    machine = Machine(serving_files, answers, front_ends=2)
    yield machine
    machine.teardown()


def missing(version: Path) -> None:
    (version / "ad_rule.npy").unlink()


def test_a_pin_holds_over_starts_and_ends_with_a_newer_version_that_loads(machine: Machine) -> None:
    """These steps in this order, however many sequences are drawn."""
    weights = {ad: float(place) for place, ad in enumerate(machine.some_ads)}
    machine.updated(stop={"ad": [*machine.some_ads[:3], *NOWHERE[1:]]}, weights=weights)
    put = [machine.row(new, old) for new, old in zip(NOWHERE[:3], machine.some_ads, strict=False)]
    machine.updated(put=put, remove=machine.some_ads[3:])  # all but one are stopped
    machine.published(2)
    machine.updated(put=[machine.row(machine.some_ads[3], machine.some_ads[1])])
    bad = machine.published_another(1, missing, mark=2)
    machine.published_another(1, mark=2)  # it has the puts before
    machine.published(2)
    machine.rolled_back(1)
    machine.loaded(2)  # refused, while the pin holds
    machine.updated(resume={"ad": machine.some_ads[1:3]}, unweight=machine.some_ads[:2])
    machine.rolled_back(bad)
    machine.published(2)
    machine.published(bad)  # the pin outlasts what CURRENT named, too
    machine.restart(kills=False)
    machine.current_becomes(None)
    machine.restart(kills=True)
    machine.current_becomes(JUNK)
    machine.unpin()
    machine.published_another(1, missing)
    sleep(0.5)  # time for some looks, none of which tries again
    machine.check()
    machine.restart(kills=True)
    machine.loaded(2, checkpoint=1)
    machine.published_another(2)
    machine.restart(kills=True)


@pytest.mark.parametrize("examples", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_a_server_serves_what_is_plain_in_any_order_of_steps(
    serving_files: ServingFiles, answers: Answers, examples: int
) -> None:
    run_state_machine_as_test(
        lambda: Machine(serving_files, answers),  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples,
            stateful_step_count=18,
            phases=[Phase.generate],  # shrinking would start a server hundreds of times
        ),
    )


def grow(version: Path) -> None:
    def change(fields: Fields) -> None:
        entry = next(each for each in fields["files"] if each["file"] == "value_utf8.location.npy")
        entry["bytes"] += HUGE - entry["shape"][0]
        entry["shape"] = [HUGE]

    forge_manifest(version, change)


Damage = Callable[[Path], object]
# By fault: how to cause it, the file that the log names, and pieces of the fault's text in order.
VERSIONS: Mapping[str, tuple[Damage, str, tuple[str, ...]]] = {
    "missing": (missing, "ad_rule.npy", ("missing", "; build or publish another version")),
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
    "vanished": (shutil.rmtree, "", ("no version ", " here; it has ")),
}


def test_a_version_that_cannot_serve_is_reported_everywhere_and_the_old_one_serves_on(
    machine: Machine,
) -> None:
    for count, (damage, file, pieces) in enumerate(VERSIONS.values()):
        bad = machine.published_another(2, damage)
        entry = machine.server.wait_log("load_failed", 2 * count + 1)[-1]
        fault = entry["fault"]
        assert entry["snapshot_version"] == bad
        assert f"/{file}" in fault
        at = 0
        for piece in pieces:
            assert piece in fault[at:], fault
            at = fault.index(piece, at)
        assert machine.operator.status().load.fault == fault
        text = machine.loaded()  # tried again on request, it fails in the same words
        assert text.partition(" room for ")[0] == fault.partition(" room for ")[0]


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


def test_what_an_operator_mistypes_is_refused_by_name_and_later_loads_work(
    machine: Machine, tmp_path: Path
) -> None:
    operator, root = machine.operator, machine.live.root
    has = some_of(versions(root))
    absent = f"snapshot_version: 4711: not in {root}, which has {has}; name one"
    none = f"1 is served, and {root} has no version below it, only {has}; copy"
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: operator.load(4711), absent),
        (lambda: operator.load(4711, "/no/such/folder"), absent),
        (lambda: operator.roll_back(4711), absent),
        *(
            (partial(operator.roll_back, version), f"_version: {version}: {none}")
            for version in (0, 1, 2)
        ),
    ]
    for call, text in refusals:
        with refused() as found:
            call()
        assert (found[0].code.name, found[0].reason) == ("FAILED_PRECONDITION", "load_refused")
        assert text in found[0].text
    machine.check()  # none of these is a failed load
    for number, (make, reason, pieces) in enumerate(CHECKPOINTS.values()):
        checkpoint = make(tmp_path / str(number), machine.live.files)
        with refused() as found:
            operator.load(checkpoint=checkpoint)
        assert found[0].reason == reason
        assert found[0].text.startswith("checkpoint: ")
        assert all(piece in found[0].text for piece in pieces)
    failed = sum(reason == "load_failed" for _, reason, _ in CHECKPOINTS.values())
    machine.plain.loads, machine.plain.failed = (1, failed), 1
    machine.loaded(2)
    machine.published(2)
