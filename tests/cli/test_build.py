"""`grace build` and `grace inspect` as commands: what they print, write and exit with."""

import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grace.index.storage.folder import writers_lock
from support.command import GRACE
from support.in_process import invoke_grace, reported


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    done = invoke_grace("synth", "--preset", "tiny", "--sids", "333", "--out", folder)
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def root(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two versions, which no test changes."""
    root = tmp_path_factory.mktemp("built")
    for _ in range(2):
        assert build(catalogue, root)[0] == 0
    return root


def build(data: Path, root: Path, *options: str) -> tuple[int, str, str]:
    done = invoke_grace("build", "--data", data, "--root", root, *options)
    return done.exit_code, done.stdout, done.stderr


def test_a_build_publishes_and_says_what_it_made(catalogue: Path, tmp_path: Path) -> None:
    code, out, err = build(catalogue, tmp_path)
    assert (code, err) == (0, "")
    for fact in ("version: 1", "published: yes", "sids: 333", "ignored columns: title"):
        assert f"{fact}\n" in out
    assert "without" not in out
    assert (tmp_path / "CURRENT").read_text() == "00000000000000000001\n"
    report = reported("build", "--data", catalogue, "--root", tmp_path, "--threads", "1")
    assert (report["sids"], report["rejects"]) == (333, 0)
    assert (report["published"], report["ignored_columns"]) == (True, ["title"])
    assert report["peak_memory_bytes"] > 0
    code, out, _ = build(catalogue, tmp_path, "--without", "campaign")
    assert code == 0
    assert "without: campaign\n" in out
    summary = reported("inspect", tmp_path)
    assert [each["distinct"] > 0 for each in summary["entities"]] == [False, True]
    assert invoke_grace("verify", tmp_path, "--deep").exit_code == 0


@pytest.mark.parametrize(
    ("eligibility", "shown"),
    [
        ("exact", "leaf rules: "),
        ("union", "fill"),
        ("static:4,3,2,1", "k way: 4,3,2,1"),
        ("dynamic:0.1,8", "k way: 0.1,8"),
        ("cd", "Levels"),
    ],
)
def test_inspect_derives_the_mode_that_it_is_asked_for(
    root: Path, eligibility: str, shown: str
) -> None:
    asked, mode = ("inspect", root, "--eligibility", eligibility), eligibility.partition(":")[0]
    summary = reported(*asked)
    assert (summary["mode"], summary["sids"], len(summary["levels"])) == (mode, 333, 4)
    printed = invoke_grace(*asked).stdout
    assert f"mode: {mode}" in printed
    assert shown in printed
    assert ("Postings" in printed) == (mode == "exact")
    assert ("Matchers" in printed) == (mode not in ("exact", "cd"))


@pytest.mark.parametrize(
    ("eligibility", "fault"),
    [
        ("magic", "eligibility: 'magic': choose from exact, cd, union, static, dynamic"),
        ("static:4,2", "eligibility: static:4,2: the SID length is 4; give one number per token"),
        ("static:4,2,many,1", "these numbers do not fit this mode; write it like static:64,"),
        ("static:4,2,0,1", "0 partitions: must be 1 to 1024"),
        ("dynamic:0.1,3", "3 partitions at most: must be a power of two from 1 to 1024"),
        ("dynamic:1.1,4", "a mean fill of 1.1: must be 0 to 1"),
        ("exact:1", "this mode takes no numbers; write it like exact"),
    ],
)
def test_inspect_refuses_an_eligibility_with_the_remedy(
    root: Path, eligibility: str, fault: str
) -> None:
    done = invoke_grace("inspect", root, "--eligibility", eligibility)
    assert (done.exit_code, fault in done.stderr) == (2, True), done.stderr


def test_inspect_reads_another_version_by_number_or_folder(catalogue: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert build(catalogue, tmp_path)[0] == 0
    by_number = reported("inspect", tmp_path, "--version", "1")
    by_folder = reported("inspect", tmp_path / f"{1:020d}")
    assert by_number == by_folder
    assert (by_number["versions"], by_number["current_version"]) == ([1, 2], 2)
    shown = invoke_grace("inspect", tmp_path).stdout.splitlines()
    assert shown[0] == "versions here: 1, 2; current: 2"
    assert shown[1] == "version: 2"
    (tmp_path / "CURRENT").write_text("2\n", encoding="utf-8")
    shown = invoke_grace("inspect", tmp_path, "--version", "1").stdout.splitlines()
    assert shown[0] == "versions here: 1, 2; current: none of them"


def current(root: Path) -> int:
    return int((root / "CURRENT").read_text())


def test_rules_lost_are_written_named_and_not_published(catalogue: Path, tmp_path: Path) -> None:
    root, table = tmp_path / "root", pq.read_table(catalogue / "ads.parquet")
    assert build(catalogue, root)[0] == 0
    lost = table.drop_columns(["country", "country_exclude"])
    pq.write_table(lost, tmp_path / "ads.parquet")
    shutil.copy(catalogue / "targeting.yaml", tmp_path)
    code, out, err = build(tmp_path, root, "--without", "country")
    assert (code, current(root)) == (1, 1)
    assert "published: no\n" in out
    assert "version 1   change, points" in out
    (before,) = re.findall(r"^error: country: ([\d.]+%) of the ads had rules", err)
    assert row_of("country", out) == ["0.0%", before, f"-{before[:-1]}"]
    assert err == (
        f"error: country: {before} of the ads had rules in version 1, now 0.0%; version 2 is "
        "written, but not published: if this is right, run `grace publish "
        f"{root} 2`, or build with a higher --max-coverage-drop than 0.2; 1 allows everything\n"
    )
    assert invoke_grace("publish", root, "2").exit_code == 0
    assert current(root) == 2
    (root / "CURRENT").write_text("junk")
    _, _, err = build(catalogue, root)
    assert f"cannot compare the rules with those of the current version: {root}" in err


def row_of(name: str, shown: str) -> list[str]:
    """Return the numbers of a name in a printed table."""
    (cells,) = (line.split()[1:] for line in shown.splitlines() if line.split()[:1] == [name])
    return cells


@pytest.mark.subprocess
def test_a_build_says_that_it_waits_for_another_command(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with writers_lock(root):
        command = [str(GRACE), "build", "--data", str(catalogue), "--root", str(root)]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        shown = waiting.stderr.readline()
    _, rest = waiting.communicate(timeout=60)
    assert shown.startswith(f"waiting for the lock of {root}")
    assert (waiting.returncode, rest) == (0, "")
