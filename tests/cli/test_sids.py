"""`grace sids`: its files, its report, and what it refuses."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from grace.configs.errors import GraceError
from grace.index.codebook.items import items_of
from grace.index.codebook.make import give_sids
from grace.index.tables.data_folder import TableSource
from support.in_process import complaint, invoke_grace, reported
from support.known_trees import tree_items

ITEMS, DIMS = 1511, 9
IDS = [f"sku-{i}" for i in range(ITEMS)]
LEARN = ("--levels", "3", "--codes", "31,16,8")


def vectors(kind: str = "float32") -> np.ndarray:
    return tree_items(ITEMS, DIMS, (16, 8), (1.0, 0.5), 0.2, seed=3)[0].astype(kind)


def write(path: Path, ids: list[Any], rows: np.ndarray | list[Any], **more: list[Any]) -> Path:
    lists = pa.array([*rows], pa.list_(pa.float32()))
    ids = ids or pa.array([], pa.string())
    pq.write_table(pa.table({"item_id": ids, "vector": lists, **more}), path)
    return path


def sids_of(path: Path) -> dict[Any, tuple[int, ...]]:
    table = pq.read_table(path).to_pydict()
    return dict(zip(table["item_id"], map(tuple, table["sid"]), strict=True))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codebook of items with text ids; copy it before changing it."""
    folder = tmp_path_factory.mktemp("shop")
    items = write(folder / "items.parquet", IDS, vectors())
    done = invoke_grace("sids", "--embeddings", items, "--out", folder / "codebook", *LEARN)
    assert done.exit_code == 0, done.stderr
    assert f"items: {ITEMS:,}\n" in done.stdout
    return folder / "codebook"


@pytest.fixture
def codebook(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "kept"))


def test_the_folder_holds_the_codebook_the_sids_and_a_report(kept: Path) -> None:
    facts = yaml.safe_load((kept / "codebook.yaml").read_text())
    space = facts["sid_space"]
    name, _, digest = space.rpartition("-")
    assert (name, len(digest), facts["vocab_sizes"]) == (kept.parent.name, 8, [31, 16, 8])
    schema = pq.read_schema(kept / "sids.parquet")
    assert schema.field("sid").type == pa.list_(pa.uint16())
    assert schema.metadata == {b"grace.sid_space": space.encode(), b"grace.vocab_sizes": b"31,16,8"}
    sids = sids_of(kept / "sids.parquet")
    assert list(sids) == IDS
    report = json.loads((kept / "report.json").read_text())
    assert (report["sid_space"], report["items"]) == (space, ITEMS)
    assert report["sids"] == len(set(sids.values()))
    for level, row in enumerate(report["levels"]):
        counts = np.bincount([sid[level] for sid in sids.values()], minlength=row["codes"])
        shares = counts[counts > 0] / ITEMS
        assert row["unused"] == int((counts == 0).sum())
        assert row["fullest"] == pytest.approx(counts.max() * len(counts) / ITEMS, abs=1e-4)
        assert row["entropy"] == pytest.approx(-(shares * np.log2(shares)).sum(), abs=1e-4)
        assert row["prefixes"] == len({sid[: level + 1] for sid in sids.values()})
    sizes = sorted(np.unique([*sids.values()], axis=0, return_counts=True)[1].tolist())
    assert report["items_per_sid"]["p50"] == sizes[(len(sizes) - 1) // 2]
    assert report["items_per_sid"]["max"] == sizes[-1]


def test_the_same_items_in_other_forms_get_the_same_sids(kept: Path, tmp_path: Path) -> None:
    rows = vectors()
    lines = [
        json.dumps({"item_id": name, "vector": row.tolist()})
        for name, row in zip(IDS, rows, strict=True)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    ids, fixed = pa.array(IDS), pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIMS)
    other = pa.table({"title": ids, "tags": [[0.5]] * ITEMS, "vector": fixed, "item_id": ids})
    (tmp_path / "parts").mkdir()
    pq.write_table(other.slice(0, 101), tmp_path / "parts" / "a.parquet")
    pq.write_table(other.slice(101), tmp_path / "parts" / "b.parquet")
    expected = sids_of(kept / "sids.parquet")
    for name in ("items.jsonl", "parts"):
        out = tmp_path / f"of {name}"
        given = ("--embeddings", tmp_path / name, "--out", out)
        assert invoke_grace("sids", *given, *LEARN).exit_code == 0
        assert sids_of(out / "sids.parquet") == expected


def changed(row: int, value: object) -> np.ndarray:
    rows = vectors()
    rows[row, 3] = value
    return rows


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN": (
        lambda at: write(at, IDS, changed(5, np.nan)),
        "row 6, item 'sku-5': vector 'nan at position 3': not a number",
    ),
    "other length": (
        lambda at: write(at, ["a", "b"], [[1.0, 2.0], [3.0]]),
        "row 2, item 'b': vector '1 numbers': others have 2",
    ),
    "repeated id": (
        lambda at: write(at, [*IDS[:-1], "sku-70"], vectors()),
        f"item sku-70 is in rows 71 and {ITEMS}; give each item once",
    ),
    "no vectors": (
        lambda at: pq.write_table(pa.table({"item_id": IDS}), at),
        "column 'vector' is missing; it has: item_id",
    ),
    "no rows": (lambda at: write(at, [], []), "no row has a vector; there are no items to"),
    "CSV": (
        lambda at: at.with_suffix(".csv").write_text("item_id,vector\n1,0.5\n"),
        "i.csv: a CSV has no column of vectors; write Parquet or JSON lines",
    ),
    "no file": (lambda _: None, "no such file"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_table_is_refused_by_row_and_name(name: str, tmp_path: Path) -> None:
    make, fault = FAULTS[name]
    made = tmp_path / ("i.csv" if name == "CSV" else "i.parquet")
    make(tmp_path / "i.parquet")
    assert fault in complaint("sids", "--embeddings", made, "--out", tmp_path / "c", *LEARN)
    assert not (tmp_path / "c").exists()


def damaged(codebook: Path) -> None:
    weights = bytearray((codebook / "codebook.safetensors").read_bytes())
    weights[-5] ^= 1
    (codebook / "codebook.safetensors").write_bytes(weights)


def edited(before: str, after: str) -> Callable[[Path], None]:
    def edit(codebook: Path) -> None:
        text = (codebook / "codebook.yaml").read_text()
        assert before in text
        (codebook / "codebook.yaml").write_text(text.replace(before, after))

    return edit


NEW = (["new"], vectors()[:1])


@pytest.mark.parametrize(
    ("damage", "items", "fault"),
    [
        (damaged, NEW, "codebook.safetensors: is not the file that codebook.yaml describes"),
        (lambda c: (c / "codebook.safetensors").unlink(), NEW, "codebook.safetensors: missing"),
        (lambda c: (c / "codebook.safetensors").write_bytes(b"\x80pickle"), NEW, "or is damaged"),
        (lambda c: (c / "codebook.yaml").unlink(), NEW, "no codebook here: expected a folder with"),
        (edited("seed: 1", "sead: 1"), NEW, "unknown key 'sead'"),
        (edited("dims: 9", "dims: 8"), NEW, "are not those of 31 codes and 8 dims"),
        (edited("[31, 16, 8]", "[30, 16, 8]"), NEW, "level 0: centres [31, 9]"),
        (edited("format: 1", "format: 2"), NEW, "a newer version of grace wrote it"),
        (edited('sid_space: "', 'sid_space: "x'), NEW, "has SID space"),
        (lambda c: (c / "sids.parquet").write_bytes(b"PAR1"), NEW, "not a readable Parquet file"),
        (Path.exists, ([1, 2], vectors()[:2]), "its ids are int64, but those of"),
    ],
)
def test_a_damaged_codebook_and_items_of_another_one_are_refused(
    damage: Callable[[Path], object],
    items: tuple[list[Any], np.ndarray],
    fault: str,
    codebook: Path,
    tmp_path: Path,
) -> None:
    damage(codebook)
    given = items_of(TableSource((str(write(tmp_path / "new.parquet", *items)),)))
    with pytest.raises(GraceError, match=re.escape(fault)):
        give_sids(given, codebook, None, lambda *_: None)


def test_new_items_get_sids_by_a_codebook_that_stays_as_it_is(kept: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in kept.iterdir()}
    new, out = (
        write(tmp_path / "new.parquet", ["a", "b"], vectors()[5:7]),
        tmp_path / "sids.parquet",
    )
    command = ("sids", "--codebook", kept, "--embeddings", new)
    assert reported(*command, "--out", out)["items"] == 2
    assert [*sids_of(out).items()] == [
        ("a", sids_of(kept / "sids.parquet")["sku-5"]),
        ("b", sids_of(kept / "sids.parquet")["sku-6"]),
    ]
    assert pq.read_schema(out).metadata == pq.read_schema(kept / "sids.parquet").metadata
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == before
    assert "name a file for the SIDs" in invoke_grace(*command).stderr
    pq.write_table(pq.read_table(new).rename_columns(["sku", "numbers"]), new)
    columns = "{files: [old.parquet], columns: {item_id: sku, vector: numbers}}"
    tables = f"ads: {{files: [ads.parquet]}}\nsids: codebook\nembeddings: {columns}"
    (tmp_path / "tables.yaml").write_text(tables)
    renamed = reported(*command, "--data", tmp_path, "--out", tmp_path / "again.parquet")
    assert sids_of(tmp_path / "again.parquet") == sids_of(out), renamed
    write(new, ["a"], vectors()[:1, :7])
    fault = complaint(*command, "--out", out)
    assert "vector '7 numbers': others have 9" in fault


def test_an_existing_codebook_stays_unless_force_is_given(codebook: Path, tmp_path: Path) -> None:
    before = (codebook / "codebook.yaml").read_text()
    items = write(tmp_path / "items.parquet", list(range(99)), vectors()[:99])
    command = ("sids", "--embeddings", items, "--out", codebook, *LEARN)
    done = invoke_grace(*command)
    assert done.exit_code == 2
    assert "`grace build` gives new ads SIDs by it" in done.stderr
    assert (codebook / "codebook.yaml").read_text() == before
    (codebook / "notes.txt").write_text("mine")
    done = invoke_grace(*command, "--force")
    assert "holds notes.txt, which is not part of a codebook" in done.stderr
    (codebook / "notes.txt").unlink()
    assert invoke_grace(*command, "--force").exit_code == 0
    assert (codebook / "codebook.yaml").read_text() != before
