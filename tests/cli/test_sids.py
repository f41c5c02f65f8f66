"""`grace sids`: its files, new items, and the faults that it names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from grace.bench.sids.vectors import tree_items
from support.command import run_grace

pytestmark = pytest.mark.subprocess

ITEMS, DIMS = 1511, 9
LEARN = ("--levels", "3", "--codes", "31,16,8", "--no-plot")


def vectors(kind: str = "float32") -> np.ndarray:
    return tree_items(ITEMS, DIMS, (16, 8), (1.0, 0.5), 0.2, seed=3)[0].astype(kind)


def lists(rows: np.ndarray) -> pa.Array:
    return pa.array([*rows], pa.list_(pa.from_numpy_dtype(rows.dtype)))


def write(path: Path, ids: list[Any], rows: np.ndarray, **more: list[Any]) -> Path:
    pq.write_table(pa.table({"item_id": ids, "vector": lists(rows), **more}), path)
    return path


def sids_of(path: Path) -> dict[Any, tuple[int, ...]]:
    table = pq.read_table(path).to_pydict()
    return dict(zip(table["item_id"], map(tuple, table["sid"]), strict=True))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codebook of items with text ids; copy it before changing it."""
    folder = tmp_path_factory.mktemp("shop")
    items = write(folder / "items.parquet", [f"sku-{i}" for i in range(ITEMS)], vectors())
    done = run_grace("sids", "--embeddings", items, "--out", folder / "codebook", *LEARN[:-1])
    assert done.returncode == 0, done.stderr
    assert f"{ITEMS:,} items have" in done.stdout
    return folder / "codebook"


@pytest.fixture
def codebook(kept: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "kept"
    copy.mkdir()
    for file in kept.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_the_folder_holds_the_codebook_the_sids_and_a_report(kept: Path) -> None:
    facts = yaml.safe_load((kept / "codebook.yaml").read_text())
    space = facts["sid_space"]
    name, _, digest = space.rpartition("-")
    assert (name, len(digest), facts["vocab_sizes"]) == (kept.parent.name, 8, [31, 16, 8])
    schema = pq.read_schema(kept / "sids.parquet")
    assert schema.field("sid").type == pa.list_(pa.uint16())
    assert schema.metadata == {
        b"grace.sid_space": space.encode(),
        b"grace.vocab_sizes": b"31,16,8",
    }
    sids = sids_of(kept / "sids.parquet")
    assert list(sids) == [f"sku-{i}" for i in range(ITEMS)]
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
    assert report["items_per_sid"]["50"] == sizes[(len(sizes) - 1) // 2]
    assert report["items_per_sid"]["100"] == sizes[-1]
    assert (kept / "codebook.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_items_in_other_forms_get_the_same_sids(kept: Path, tmp_path: Path) -> None:
    rows = vectors()
    np.save(tmp_path / "items.npy", rows)
    (tmp_path / "ids.txt").write_text("".join(f"sku-{i}\n" for i in range(ITEMS)))
    lines = [json.dumps({"sku": f"sku-{i}", "e": row.tolist()}) for i, row in enumerate(rows)]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIMS)
    ids = pa.array([f"sku-{i}" for i in range(ITEMS)])
    other = {"title": ids, "tags": [[0.5]] * ITEMS, "emb": fixed, "sku": ids}
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table(other).slice(0, 701), tmp_path / "parts" / "a.parquet")
    pq.write_table(pa.table(other).slice(701), tmp_path / "parts" / "b.parquet")
    named = ("--id-column", "sku", "--vector-column", "emb")
    for number, source in enumerate(
        (
            ("items.npy", "--ids", tmp_path / "ids.txt"),
            ("items.jsonl",),
            ("parts", *named),
        )
    ):
        out = tmp_path / f"out{number}"
        done = run_grace(
            "sids", "--embeddings", tmp_path / source[0], *source[1:], "--out", out, *LEARN
        )
        assert done.returncode == 0, done.stderr
        assert sids_of(out / "sids.parquet") == sids_of(kept / "sids.parquet")


def test_float16_vectors_without_ids_are_named_by_their_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors("float16"))
    done = run_grace(
        "sids", "--embeddings", tmp_path / "v.npy", "--out", tmp_path / "c", *LEARN, "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(sids_of(tmp_path / "c" / "sids.parquet")) == list(range(ITEMS))
    errors = [level["error"] for level in report["levels"]]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.3


def test_new_items_join_the_table_and_old_ones_keep_their_sids(
    codebook: Path, tmp_path: Path
) -> None:
    before = sids_of(codebook / "sids.parquet")
    rows = vectors()
    rows[7] = -rows[7]  # a changed item
    given = [f"sku-{i}" for i in range(701)] + ["twin-of-8", "new"]
    new = np.concatenate([rows[:701], rows[8:9], rows[9:10] * 1.5])
    items = write(tmp_path / "new.parquet", given, new)
    done = run_grace("sids", "--embeddings", items, "--codebook", codebook)
    assert done.returncode == 0, done.stderr
    assert "2 items are new; 1 have another SID than before" in done.stdout
    after = sids_of(codebook / "sids.parquet")
    assert after["twin-of-8"] == before["sku-8"]
    assert [*after] == [*before, "twin-of-8", "new"]
    assert {name for name in before if after[name] != before[name]} == {"sku-7"}
    assert pq.read_schema(codebook / "sids.parquet").metadata[b"grace.sid_space"]


def test_new_items_may_have_a_table_of_their_own(codebook: Path, tmp_path: Path) -> None:
    before = (codebook / "sids.parquet").read_bytes()
    items = write(tmp_path / "new.parquet", list(range(20)), vectors()[40:60])
    done = run_grace(
        "sids", "--embeddings", items, "--codebook", codebook, "--out", tmp_path / "own.parquet"
    )
    assert done.returncode == 0, done.stderr
    expected = [*sids_of(codebook / "sids.parquet").values()][40:60]
    assert [*sids_of(tmp_path / "own.parquet").values()] == expected
    assert (codebook / "sids.parquet").read_bytes() == before


def test_without_matplotlib_the_command_says_so_and_goes_on(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "matplotlib" / "__init__.py"
    absent.parent.mkdir(parents=True)
    absent.write_text("raise ModuleNotFoundError('as if absent', name='matplotlib')")
    items = write(tmp_path / "items.parquet", list(range(ITEMS)), vectors())
    done = run_grace(
        *("sids", "--embeddings", items, "--out", tmp_path / "c", "--levels", "1", "--codes", "3"),
        env={"PYTHONPATH": str(tmp_path / "absent")},
    )
    assert done.returncode == 0, done.stderr
    assert "no codebook.png: it needs matplotlib: pip install 'grace-serving[plots]'" in done.stdout
    assert sorted(file.name for file in (tmp_path / "c").iterdir()) == [
        *("codebook.safetensors", "codebook.yaml", "report.json", "sids.parquet")
    ]


def changed(row: int, value: object) -> np.ndarray:
    rows = vectors()
    rows[row, 3] = value
    return rows


IDS = [f"sku-{i}" for i in range(ITEMS)]
FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "NaN": (
        lambda at: write(at / "i.parquet", IDS, changed(5, np.nan)),
        "i.parquet: row 5, item sku-5: column 'vector' holds nan at position 3, not a number",
    ),
    "too large": (
        lambda at: write(at / "i.parquet", IDS, changed(6, -1e30)),
        "row 6, item sku-6: column 'vector' holds -1",
    ),
    "other length": (
        lambda at: write_lists(at, [[1.0, 2.0], [3.0]]),
        "row 1, item b: column 'vector' has 1 numbers, others have 2",
    ),
    "null vector": (
        lambda at: write_lists(at, [[1.0, 2.0], None]),
        "row 1, item b: column 'vector' is null",
    ),
    "null number": (
        lambda at: write_lists(at, [[1.0, 2.0], [1.0, None]]),
        "row 1, item b: column 'vector' holds a null",
    ),
    "null id": (
        lambda at: write(at / "i.parquet", [*IDS[:-1], None], vectors()),
        f"row {ITEMS - 1}: column 'item_id' is null",
    ),
    "empty id": (
        lambda at: write(at / "i.parquet", ["", *IDS[1:]], vectors()),
        "row 0: column 'item_id' is empty",
    ),
    "negative id": (
        lambda at: write(at / "i.parquet", [*range(-3, ITEMS - 3)], vectors()),
        "row 0: column 'item_id' is -3, a negative number",
    ),
    "repeated id": (
        lambda at: write(at / "i.parquet", [*IDS[:-1], "sku-70"], vectors()),
        f"item sku-70 is in rows 70 and {ITEMS - 1}; give each item once",
    ),
    "two columns of vectors": (
        lambda at: write(at / "i.parquet", IDS, vectors(), other=[[0.5]] * ITEMS),
        "2 columns may: vector, other; name it with --vector-column",
    ),
    "no vectors": (
        lambda at: table(at, {"item_id": IDS}),
        "the vectors are in a column of lists of floats, and no column does",
    ),
    "no rows": (
        lambda at: write_lists(at, []),
        "no rows",
    ),
    "CSV": (
        lambda at: text(at / "i.csv", "item_id,vector\n1,0.5\n"),
        "i.csv: a CSV has no column of vectors; write Parquet, JSON lines or a .npy",
    ),
    "no file": (lambda at: at / "absent.parquet", "absent.parquet: no such file"),
}


def table(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), folder / "i.parquet")
    return folder / "i.parquet"


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def write_lists(folder: Path, rows: list[Any]) -> Path:
    values = pa.array(rows, pa.list_(pa.float32()))
    return table(
        folder, {"item_id": pa.array(["a", "b"][: len(rows)], pa.string()), "vector": values}
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_table_is_refused_by_row_and_name(name: str, tmp_path: Path) -> None:
    make, fault = FAULTS[name]
    done = run_grace("sids", "--embeddings", make(tmp_path), "--out", tmp_path / "c", *LEARN)
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "c").exists()


def damaged(codebook: Path) -> None:
    weights = bytearray((codebook / "codebook.safetensors").read_bytes())
    weights[-5] ^= 1
    (codebook / "codebook.safetensors").write_bytes(weights)


def edited(name: str, before: str, after: str) -> Callable[[Path], None]:
    def edit(codebook: Path) -> None:
        text = (codebook / name).read_text()
        assert before in text
        (codebook / name).write_text(text.replace(before, after))

    return edit


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (damaged, "codebook.safetensors: is not the file that codebook.yaml describes"),
        (lambda c: (c / "codebook.safetensors").unlink(), "codebook.safetensors: missing"),
        (lambda c: (c / "codebook.safetensors").write_bytes(b"\x80\x04pickle"), "holds a pickle"),
        (lambda c: (c / "codebook.yaml").unlink(), "no codebook here: expected a folder with"),
        (edited("codebook.yaml", "seed: 1", "sead: 1"), "unknown key 'sead'"),
        (edited("codebook.yaml", "dims: 9", "dims: 8"), "vectors of 9 numbers, those of"),
        (edited("codebook.yaml", "[31, 16, 8]", "[30, 16, 8]"), "level 0: centres [31, 9]"),
        (edited("codebook.yaml", "format: 1", "format: 2"), "a newer version of grace wrote it"),
        (edited("codebook.yaml", 'sid_space: "', 'sid_space: "x'), "is of SID space"),
        (lambda c: (c / "sids.parquet").write_bytes(b"PAR1"), "not a readable table of SIDs"),
    ],
)
def test_a_damaged_codebook_is_named(
    damage: Callable[[Path], None], fault: str, codebook: Path, tmp_path: Path
) -> None:
    damage(codebook)
    items = write(tmp_path / "new.parquet", ["new"], vectors()[:1])
    done = run_grace("sids", "--embeddings", items, "--codebook", codebook)
    assert done.returncode in (1, 2)
    assert fault in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ids_of_another_type_than_the_table_s_are_refused(codebook: Path, tmp_path: Path) -> None:
    items = write(tmp_path / "new.parquet", [1, 2], vectors()[:2])
    done = run_grace("sids", "--embeddings", items, "--codebook", codebook)
    assert done.returncode == 2
    assert "its ids are int64, those of" in done.stderr


def test_an_existing_codebook_stays_unless_force_is_given(codebook: Path, tmp_path: Path) -> None:
    before = (codebook / "codebook.yaml").read_text()
    items = write(tmp_path / "items.parquet", IDS[:99], vectors()[:99])
    command = ("sids", "--embeddings", items, "--out", codebook, *LEARN)
    done = run_grace(*command)
    assert done.returncode == 2
    assert "SIDs of new items come from --codebook" in done.stderr
    assert (codebook / "codebook.yaml").read_text() == before
    (codebook / "notes.txt").write_text("mine")
    done = run_grace(*command, "--force")
    assert "holds notes.txt, no part of a codebook" in done.stderr
    (codebook / "notes.txt").unlink()
    assert run_grace(*command, "--force").returncode == 0
    assert (codebook / "codebook.yaml").read_text() != before
