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
    assert build(catalogue, root, "--matchers", "union")[0] == 0
    shown = invoke_grace("inspect", root)
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
    summary = json.loads(invoke_grace("inspect", root, "--json").stdout)
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
    assert build(catalogue, root, "--matchers", "cd")[0] == 0
    assert build(catalogue, root)[0] == 0
    by_number = json.loads(invoke_grace("inspect", root, "--version", "1", "--json").stdout)
    by_folder = json.loads(invoke_grace("inspect", root / f"{1:020d}", "--json").stdout)
    assert by_number == by_folder
    assert (by_number["mode"], by_number["matchers"]) == ("cd", [])


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("static", "--k", "4,3,2,1"), {"static": {"widths": [4, 3, 2, 1]}}),
        (
            ("dynamic", "--fill-target", "0.1", "--k-max", "8"),
            {"dynamic": {"fill_target_millionths": 100_000, "k_max": 8}},
        ),
    ],
    ids=["static", "dynamic"],
)
def test_k_way_matchers_are_built_verified_and_inspected(
    catalogue: Path, tmp_path: Path, options: tuple[str, ...], facts: dict[str, object]
) -> None:
    root = tmp_path / "root"
    code, out, err = build(catalogue, root, "--matchers", *options)
    assert (code, err) == (0, ""), out
    manifest = json.loads((root / f"{1:020d}" / "MANIFEST.json").read_bytes())
    assert {key: manifest["matchers"][key] for key in facts} == facts
    shown = invoke_grace("verify", root, "--deep")
    assert shown.exit_code == 0, shown.stderr
    summary = json.loads(invoke_grace("inspect", root, "--json").stdout)
    assert summary["mode"] == options[0]
    words = invoke_grace("inspect", root).stdout
    if options[0] == "static":
        assert summary["k_way"] == {"widths": [4, 3, 2, 1]}
        assert "matchers: static, partitions per token 4,3,2,1" in words
        assert "counts the empty partitions" in words
    else:
        assert summary["k_way"] == {"fill_target": 0.1, "k_max": 8}
        assert "matchers: dynamic, fill target 0.1, k max 8" in words


def test_mode_exact_is_built_verified_and_inspected(catalogue: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    code, out, err = build(catalogue, root, "--matchers", "exact")
    assert (code, err) == (0, ""), out
    shown = invoke_grace("verify", root, "--deep")
    assert shown.exit_code == 0, shown.stderr
    summary = json.loads(invoke_grace("inspect", root, "--json").stdout)
    assert (summary["mode"], summary["matchers"]) == ("exact", [])
    assert [each["name"] for each in summary["exact"]["postings"]] == ["location", "audience"]
    words = invoke_grace("inspect", root).stdout
    pairs = f"{summary['exact']['leaf_rules']:,} pairs of SID and distinct rule"
    for text in ("matchers: exact", pairs, "Posting lists", "include entries"):
        assert text in words
    assert "matcher row" not in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--matchers", "magic"), "'magic'; choose from exact, cd, union, static, dynamic"),
        (("--matchers", "static"), "matchers static: pass --k"),
        (("--matchers", "static", "--k", "4,2"), "--k 4,2: the SID length is 4"),
        (("--matchers", "static", "--k", "4,2,many,1"), "expected numbers such as"),
        (("--matchers", "static", "--k", "4,2,0,1"), "widths[2]: must be 1 to 1024"),
        (("--matchers", "dynamic", "--k-max", "3"), "k_max: must be a power of two"),
        (("--matchers", "dynamic", "--k", "4,4,2,1"), "matchers dynamic: --k is for static"),
        (("--k", "4,4,2,1", "--k-max", "4"), "is for static matchers"),
        (("--k-max", "4"), "matchers exact: have no partitions"),
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
