"""`grace build` and `grace inspect` as commands: what they print, write and exit with."""

import json
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grace.index.storage.folder import writers_lock
from support.command import GRACE
from support.in_process import invoke_grace


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    done = invoke_grace("synth", "--preset", "tiny", "--sids", "333", "--out", folder)
    assert done.exit_code == 0, done.stderr
    return folder


def build(catalogue: Path, root: Path, *options: str | Path) -> tuple[int, str, str]:
    inputs = ("--ads", catalogue / "ads.parquet", "--targeting", catalogue / "targeting.yaml")
    done = invoke_grace("build", *inputs, "--root", root, *options)
    return done.exit_code, done.stdout, done.stderr


def test_a_build_publishes_and_says_what_it_made(catalogue: Path, tmp_path: Path) -> None:
    code, out, err = build(catalogue, tmp_path / "root")
    assert (code, err) == (0, "")
    assert "version 1 (published)" in out
    assert "333 SIDs" in out
    assert "targeting.yaml does not name: title" in out
    assert "without" not in out
    assert (tmp_path / "root" / "CURRENT").read_text() == "00000000000000000001\n"


def test_the_json_summary_is_all_that_goes_to_standard_output(
    catalogue: Path, tmp_path: Path
) -> None:
    code, out, _ = build(catalogue, tmp_path / "root", "--json", "--threads", "1")
    report = json.loads(out)
    assert (code, report["sids"], report["rejects"]) == (0, 333, 0)
    assert report["published"] is True
    assert report["ignored_columns"] == ["title"]
    assert report["peak_memory_bytes"] > 0


def test_inspect_prints_the_index_summary_and_json(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert build(catalogue, root)[0] == 0
    union = ("inspect", root, "--eligibility", "union")
    shown = invoke_grace(*union)
    assert shown.exit_code == 0
    for text in (
        "333 SIDs",
        "p50/p90/p99/max",
        "mean fill",
        "row ids",
        "kB",
        "location",
        "p3",
        "campaign:",
    ):
        assert text in shown.stdout
    assert "empty partitions" not in shown.stdout
    summary = json.loads(invoke_grace(*union, "--json").stdout)
    assert summary["sids"] == 333
    assert [level["position"] for level in summary["levels"]] == [0, 1, 2, 3]
    assert [each["name"] for each in summary["entities"]] == ["campaign", "advertiser"]
    assert {m["kind"] for m in summary["matchers"]} == {"bitmask", "location", "audience"}


def test_a_build_without_an_entity_says_so(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    code, out, _ = build(catalogue, root, "--without", "campaign")
    assert code == 0
    assert "without campaign: no ad has a rule on it, or belongs to one\n" in out
    assert "targeting.yaml does not name: title\n" in out
    summary = json.loads(invoke_grace("inspect", root, "--json").stdout)
    assert [each["distinct"] > 0 for each in summary["entities"]] == [False, True]


def test_inspect_reads_another_version_by_number_or_folder(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert build(catalogue, root)[0] == 0
    assert build(catalogue, root)[0] == 0
    by_number = json.loads(invoke_grace("inspect", root, "--version", "1", "--json").stdout)
    by_folder = json.loads(invoke_grace("inspect", root / f"{1:020d}", "--json").stdout)
    assert by_number == by_folder
    assert (by_number["versions"], by_number["current_version"]) == ([1, 2], 2)
    shown = invoke_grace("inspect", root).stdout.splitlines()
    assert shown[0] == "versions here: 1, 2; current: 2"
    assert shown[1].startswith("version 2, created ")
    (root / "CURRENT").write_text("2\n", encoding="utf-8")
    shown = invoke_grace("inspect", root, "--version", "1").stdout.splitlines()
    assert shown[0] == "versions here: 1, 2; current: none of them"


@pytest.mark.parametrize(
    ("eligibility", "k_way", "words"),
    [
        ("static:4,3,2,1", {"widths": [4, 3, 2, 1]}, "mode static, partitions per token 4,3,2,1"),
        (
            "dynamic:0.1,8",
            {"fill_target": 0.1, "k_max": 8},
            "mode dynamic, fill target 0.1, k max 8",
        ),
        ("cd", None, "mode cd"),
    ],
)
def test_inspect_derives_the_mode_that_it_is_asked_for(
    catalogue: Path, tmp_path: Path, eligibility: str, k_way: dict[str, object] | None, words: str
) -> None:
    root = tmp_path / "root"
    assert build(catalogue, root)[0] == 0
    asked = ("inspect", root, "--eligibility", eligibility)
    summary = json.loads(invoke_grace(*asked, "--json").stdout)
    assert (summary["mode"], summary["k_way"]) == (eligibility.partition(":")[0], k_way)
    shown = invoke_grace(*asked).stdout
    assert words in shown
    assert ("counts the empty partitions" in shown) == eligibility.startswith("static")


@pytest.mark.parametrize(
    ("eligibility", "fault"),
    [
        ("magic", "eligibility: 'magic': choose from exact, cd, union, static, dynamic"),
        ("static:4,2", "eligibility: static:4,2: the SID length is 4; give one number per token"),
        ("static:4,2,many,1", "write static and partitions per token, as static:64,64,32,8"),
        ("static:4,2,0,1", "0 partitions: must be 1 to 1024"),
        ("dynamic:0.1,3", "3 partitions at most: must be a power of two from 1 to 1024"),
        ("dynamic:1.1,4", "a mean fill of 1.1: must be 0 to 1"),
        ("exact:1", "has numbers; write exact, which takes no numbers"),
    ],
)
def test_inspect_refuses_an_eligibility_with_the_remedy(
    catalogue: Path, tmp_path: Path, eligibility: str, fault: str
) -> None:
    root = tmp_path / "root"
    assert build(catalogue, root)[0] == 0
    done = invoke_grace("inspect", root, "--eligibility", eligibility)
    assert (done.exit_code, fault in done.stderr) == (2, True), done.stderr


def test_mode_exact_is_verified_and_inspected(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    code, out, err = build(catalogue, root)
    assert (code, err) == (0, ""), out
    shown = invoke_grace("verify", root, "--deep")
    assert shown.exit_code == 0, shown.stderr
    summary = json.loads(invoke_grace("inspect", root, "--json").stdout)
    assert (summary["mode"], summary["matchers"]) == ("exact", [])
    assert [each["name"] for each in summary["exact"]["postings"]] == ["location", "audience"]
    words = invoke_grace("inspect", root).stdout
    pairs = f"{summary['exact']['leaf_rules']:,} pairs of SID and distinct rule"
    for text in ("mode exact", pairs, "Posting lists", "include entries", "B in memory: decoding "):
        assert text in words
    assert "matcher" not in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--vocab-sizes", "64,many"), "expected numbers such as 512,512,512,512"),
        (("--vocab-sizes", "64,64"), "error: --vocab-sizes 64,64: 2 tokens, but the SIDs of"),
        (("--version", "0"), "version 0"),
        (("--scratch", "scratch"), "give --shards or --ray as well"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_exit_2_and_say_what_to_do(
    catalogue: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    code, out, err = build(catalogue, tmp_path / "root", *options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_file_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    code, out, err = build(tmp_path, tmp_path / "root")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_refused_ads_end_the_build_unless_allowed(catalogue: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ads"
    shutil.copytree(catalogue, folder)
    table = pq.read_table(folder / "ads.parquet")
    repeated = table.slice(0, 1)
    pq.write_table(repeated, folder / "again.parquet")
    again = ("--ads", folder / "again.parquet")
    code, _, err = build(folder, tmp_path / "root", *again)
    assert code == 2
    assert "is repeated" in err
    code, out, _ = build(folder, tmp_path / "root", *again, "--max-rejects", "2")
    assert code == 0
    assert "2 ads refused, listed in" in out


def test_a_build_reports_when_it_makes_fewer_shards_than_asked(
    catalogue: Path, tmp_path: Path
) -> None:
    tokens = len({sid[0] for sid in pq.read_table(catalogue / "ads.parquet")["sid"].to_pylist()})
    code, out, _ = build(catalogue, tmp_path / "root", "--shards", "333")
    assert code == 0
    assert f"{tokens} shards and not 333" in out
    code, out, _ = build(catalogue, tmp_path / "root", "--shards", "2")
    assert "shards and not" not in out


@pytest.mark.subprocess
def test_a_build_says_that_it_waits_for_another_command(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    inputs = ("--ads", catalogue / "ads.parquet", "--targeting", catalogue / "targeting.yaml")
    with writers_lock(root):
        waiting = subprocess.Popen(
            [GRACE, "build", *inputs, "--root", root], stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        shown = waiting.stderr.readline()
    _, rest = waiting.communicate(timeout=60)
    assert shown.startswith(f"waiting for the lock of {root}")
    assert (waiting.returncode, rest) == (0, "")
