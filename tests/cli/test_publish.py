"""`grace verify` and `grace publish`, as their users and scripts run them."""

import json
from pathlib import Path

import pytest

from grace.index.storage import current_version, publish
from support.forgery import forge_array, make_version, read_array_file
from support.in_process import invoke_grace, reported


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for version in (1, 2):
        make_version(tmp_path / "root", version)
    publish(tmp_path / "root", 1)
    return tmp_path / "root"


def break_rules(root: Path, version: int) -> None:
    path = root / f"{version:020d}"
    array = read_array_file(path, "ad_rule.npy")
    array[3] = 99
    forge_array(path, "ad_rule.npy", array)


def test_verify_prints_what_a_snapshot_holds(root: Path) -> None:
    done = invoke_grace("verify", root)
    assert (done.exit_code, done.stderr) == (0, "")
    arrays = len(list((root / f"{1:020d}").glob("*.npy")))
    for fact in ("version: 1", "is current: yes", f"files: {arrays}", "ads: 8", "rules: 9"):
        assert f"\n{fact}\n" in done.stdout
    for given in ((root, "--version", "2"), (root / f"{2:020d}",)):
        assert "\nversion: 2\nis current: no\n" in invoke_grace("verify", *given).stdout


def test_verify_as_json_is_for_scripts(root: Path) -> None:
    (root / f"{1:020d}" / "not-listed.txt").write_text("no reader looks at it")
    report = reported("verify", root, "--deep")
    assert (report["ok"], report["version"], report["is_current"]) == (True, 1, True)
    assert report["counts"]["nodes_per_level"] == [1, 2, 4, 6]


def test_verify_names_the_fault_of_a_damaged_version_and_publish_refuses_it(root: Path) -> None:
    break_rules(root, 1)
    done = invoke_grace("verify", root)
    assert (done.exit_code, done.stdout) == (1, "")
    folder = root / f"{1:020d}"
    fault = "entry 3 is rule 99, expected 0 to 10"
    assert (
        done.stderr == f"error: {folder}/ad_rule.npy: {fault}; build or publish another version\n"
    )
    done = invoke_grace("verify", root, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "ok": False,
        "path": str(folder),
        "file": "ad_rule.npy",
        "fault": fault,
    }
    break_rules(root, 2)
    assert (invoke_grace("publish", root, "2").exit_code, current_version(root)) == (1, 1)


def test_publish_moves_current_forward_and_back(root: Path) -> None:
    done = invoke_grace("publish", root, "2")
    assert (done.exit_code, done.stdout) == (0, f"{root}: 1 -> 2\n")
    done = invoke_grace("publish", root, f"{1:020d}")
    assert (done.exit_code, done.stdout) == (0, f"{root}: 2 -> 1 (back)\n")
    assert reported("publish", root, "2") == {"root": str(root), "from": 1, "to": 2}
