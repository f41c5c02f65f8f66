"""The script, the metadata and the sizes of docs/building.md are what it says."""

import fcntl
import re
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.snapshot import Snapshot, bytes_of
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.rules import NumberRows, ValueRows, lists_in
from support.command import GRACE, plain_environment
from support.documents import the_block
from support.forked_program import forked_grace
from support.in_process import invoke_grace

pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def document(repository: Path) -> str:
    return (repository / "docs" / "building.md").read_text()


@pytest.fixture(scope="module")
def hourly(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("script") / "hourly.sh"
    file.write_text(the_block(repository / "docs" / "building.md", "sh", "#!/bin/sh"))
    return file


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    done = invoke_grace("synth", "--preset", "tiny", "--sids", "333", "--out", folder)
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture(scope="module", autouse=True)
def grace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The program that the script calls, in a fork."""
    program = tmp_path_factory.mktemp("program") / "grace"
    with forked_grace(program), pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRACE", str(program))
        yield


def run(
    script: Path, data: Path, root: Path | str, *options: str, **environment: str
) -> tuple[int, str]:
    """As cron does: in another folder, with a short PATH."""
    done = subprocess.run(
        ["sh", str(script), str(data), str(root), *options],
        env=plain_environment(PATH="/usr/bin:/bin", **environment),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def build(data: Path, root: Path, times: int = 1) -> None:
    """Publish versions as earlier hours did, without the script."""
    for _ in range(times):
        done = invoke_grace("build", "--data", data, "--root", root)
        assert done.exit_code == 0


def versions(root: Path) -> list[int]:
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


def test_the_hourly_script_publishes_and_keeps_versions_also_after_a_failed_hour(
    hourly: Path, catalogue: Path, tmp_path: Path
) -> None:
    root = tmp_path / "snapshots"
    build(catalogue, root, times=3)
    code, _ = run(hourly, catalogue, root, "--magic", KEEP="2")
    assert (code, versions(root)) == (2, [2, 3])
    assert invoke_grace("publish", root, "2").exit_code == 0
    assert run(hourly, catalogue, root, KEEP="1") == (0, "")
    assert versions(root) == [4]
    assert (root / "CURRENT").read_text() == f"{4:020d}\n"


@pytest.mark.parametrize("lost", ["ads", "rules"])
def test_the_hourly_script_publishes_no_table_that_lost_ads_or_rules(
    hourly: Path, catalogue: Path, tmp_path: Path, lost: str
) -> None:
    root, ads = tmp_path / "snapshots", tmp_path / "ads.parquet"
    (tmp_path / "targeting.yaml").write_bytes((catalogue / "targeting.yaml").read_bytes())
    build(catalogue, root)
    table = pq.read_table(catalogue / "ads.parquet")
    half, without = table.slice(0, table.num_rows // 2), ("location", "location_exclude")
    pq.write_table(half if lost == "ads" else table.drop_columns(without), ads)
    options = () if lost == "ads" else ("--without", "location")
    code, shown = run(hourly, tmp_path, root, *options)
    assert code == 1
    assert shown.endswith("not published\n") if lost == "ads" else "location: " in shown
    assert (versions(root), (root / "CURRENT").read_text()) == ([1], f"{1:020d}\n")


def test_the_hourly_script_passes_options_on_and_takes_a_root_with_a_slash(
    hourly: Path, catalogue: Path, tmp_path: Path
) -> None:
    ads = tmp_path / "ads.parquet"
    (tmp_path / "targeting.yaml").write_bytes((catalogue / "targeting.yaml").read_bytes())
    shown = pq.read_table(catalogue / "ads.parquet")
    pq.write_table(shown.replace_schema_metadata({}), ads)
    root = tmp_path / "snapshots"
    code, error = run(hourly, tmp_path, root)
    assert (code, "pass --sid-space" in error, error.count("\n")) == (2, True, 1)
    sizes = shown.schema.metadata[b"grace.vocab_sizes"].decode()
    options = ("--sid-space", "shop 7", "--vocab-sizes", sizes)
    assert run(hourly, tmp_path, f"{root}/", *options) == (0, "")
    assert versions(root) == [1]  # the refused hour left no trace
    assert load_snapshot(root).facts.sid_space == "shop 7"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ads.parquet",
        "snapshots",
        "targeting.yaml",
    ]


@pytest.mark.parametrize("moves", [True, False], ids=["after", "before"])
def test_a_failed_publish_leaves_the_current_version(
    hourly: Path, catalogue: Path, tmp_path: Path, moves: bool
) -> None:
    root = tmp_path / "snapshots"
    build(catalogue, root)
    failing = tmp_path / "grace"
    before = f'"{GRACE}" "$@"; ' if moves else ""
    failing.write_text(
        f'#!/bin/sh\nif [ "$1" = publish ]; then {before}exit 7; fi\nexec "{GRACE}" "$@"\n'
    )
    failing.chmod(0o755)
    code, _ = run(hourly, catalogue, root, GRACE=str(failing))
    assert (code, versions(root)) == (7, [1, 2] if moves else [1])
    assert int((root / "CURRENT").read_text()) == max(versions(root))


def test_the_hourly_script_reports_skipped_hours_and_fails_when_a_build_runs_too_long(
    hourly: Path, catalogue: Path, tmp_path: Path
) -> None:
    root = tmp_path / "snapshots"
    root.mkdir()
    (root / ".hourly.since").write_text(f"{int(time.time()) - 63 * 60}\n")
    with (root / ".hourly.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, shown = run(hourly, catalogue, root)
        assert (code, shown) == (0, "skipped: the build before has been running for 63 minutes\n")
        assert run(hourly, catalogue, root, LATE_MINUTES="63")[0] == 1
    assert not versions(root)


def test_the_metadata_of_the_document_lets_a_frame_build_without_options(
    document: str, tmp_path: Path
) -> None:
    code = next(re.finditer(r"```python\n(.*?)```", document, re.DOTALL))[1]
    table = pa.table({"ad_id": [7, 5], "sid": [[1, 2, 3, 4], [1, 2, 3, 5]]})
    frame = code.replace("pyarrow.Table.from_pandas(frame, preserve_index=False)", "given")
    assert frame != code
    file = str(tmp_path / "ads.parquet")
    exec(frame.replace("ads.parquet", file), {"given": table})  # noqa: S102
    (tmp_path / "targeting.yaml").write_text("{}\n")
    done = invoke_grace("build", "--data", tmp_path, "--root", tmp_path / "root")
    assert (done.exit_code, done.stderr) == (0, "")
    assert load_snapshot(tmp_path / "root").trie.vocab_sizes == (512, 512, 512, 512)


def test_an_array_of_codes_is_built_as_the_document_says(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, code = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    np.save(tmp_path / "codes.npy", np.array([[1, 2], [1, 0]], np.uint16))
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # noqa: S102
    (tmp_path / "targeting.yaml").write_text("{}\n")
    tables = "ads: {files: [sids.parquet], columns: {ad_id: item_id}}\n"
    (tmp_path / "tables.yaml").write_text(tables)
    space = ("--sid-space", "s", "--vocab-sizes", "3,3")
    done = invoke_grace("build", "--data", tmp_path, "--root", tmp_path / "root", *space)
    assert (done.exit_code, done.stderr) == (0, "")
    sids = load_snapshot(tmp_path / "root").trie.sids(np.arange(2))
    assert sids.tolist() == [[1, 0], [1, 2]]


def test_the_tables_yaml_of_the_document_is_one(document: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    (tmp_path / "tables.yaml").write_text(text)
    data = read_data_folder(tmp_path)
    assert (data.ads.theirs("country"), data.ads.list_separator) == ("Country Code", "|")
    assert data.log is not None
    assert data.embeddings is not None


def test_the_sizing_table_adds_up_to_the_bytes_of_a_snapshot(
    document: str, catalogue: Path, tmp_path: Path
) -> None:
    build(catalogue, tmp_path)
    snapshot = load_snapshot(tmp_path)
    kinds = snapshot.entities
    nodes, leaves = sum(snapshot.trie.level_counts), snapshot.trie.num_leaves
    rules, sets = snapshot.rules, snapshot.schema.sets
    intervals = [each for each in rules.parts[1:] if isinstance(each, NumberRows)]
    properties = [each for each in rules.parts if isinstance(each, ValueRows)]
    of_sets, of_properties = (
        [text for interned in some for text in interned.strings]
        for some in (snapshot.set_values[: len(sets)], snapshot.set_values[len(sets) :])
    )
    values = of_sets + of_properties
    columns = [each for rows in rules.sets for each in rows.columns]
    lists = map(lists_in, (*columns, *(rows.columns[0] for rows in properties)))
    in_lists = sum(len(each.values) for each in lists if each is not None)
    groups = sum(len(rule.groups.lists.offsets) - 1 for rule in rules.sets)
    expected = {
        "ad": 20 * snapshot.ads.num_ads,
        "ad, for each kind of entity": 4 * snapshot.ads.num_ads * len(kinds),
        "ad that has an entity, for each kind": sum(4 * len(kind.ads) for kind in kinds),
        "entity": sum(16 * len(kind) for kind in kinds),
        "SID": 8 * leaves,
        "inner node": 4 * (nodes - leaves),
        "node but the root": 2 * (nodes - 1),
        "rule": 4 * rules.num_rules,
        "rule, for each set, range, flight and property": 4 * rules.rows[:, 1:].size,
        "distinct list of clauses": 8 * rules.num_alternatives,
        "rule in a list of clauses": 4 * len(rules.alternatives.values),
        "distinct bitmask of rules": 8 * snapshot.schema.words * len(rules.bitmask_table),
        "distinct rule of a set": sum(24 * len(rule) for rule in rules.sets),
        "group of such a rule": 8 * groups,
        "distinct range or flight": sum(16 * len(rows) for rows in intervals),
        "distinct list of a property": sum(8 * len(rows) for rows in properties),
        "value in a rule of a set or list of a property": 4 * in_lists,
        "value": 8 * len(values),
        "byte of a value": sum(len(text.encode()) for text in values),
    }
    shown = re.findall(r"^\| ([\w ,]+) \| \d+(?: W)? \| `", document, re.MULTILINE)
    assert shown == [*expected]
    # The last of each array of offsets: of ads, alternatives, rules and their values, entities.
    ends = 8 * (2 + 5 * len(sets) + 2 * len(properties) + len(kinds)) + 4
    arrays = [np.load(file) for file in (tmp_path / f"{1:020d}").glob("*.npy")]
    assert sum(array.nbytes for array in arrays) == sum(expected.values()) + ends
    # In mode `exact` a load makes these.
    pairs = sum(len({*rules}) for rules in rules_by_sid(snapshot))
    derived = bytes_of(snapshot.exact) - 4 - 16 * len(sets) - 8 * len(properties)
    per_value = 16 * len(of_sets) + 8 * len(of_properties)
    assert derived == 4 * leaves + 4 * pairs + per_value + 4 * in_lists


def rules_by_sid(snapshot: Snapshot) -> list[list[int]]:
    borders = pairwise(snapshot.ads.ad_offsets.tolist())
    return [snapshot.ads.ad_rule[begin:end].tolist() for begin, end in borders]
