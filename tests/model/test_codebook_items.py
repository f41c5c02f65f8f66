"""Tables of items in all their forms, and the faults of items and codebooks that errors name."""

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

from grace.bench.sids.vectors import tree_items
from grace.configs.errors import GraceError, InputError
from grace.index.codebook.items import open_items
from grace.index.codebook.make import CodebookSpec, extend, make_codebook
from grace.model.codebook.kmeans import learn_codebook

ITEMS, DIMS = 211, 9


def vectors() -> np.ndarray:
    return tree_items(ITEMS, DIMS, (16, 8), (1.0, 0.5), 0.2, seed=3)[0]


def write(path: Path, ids: list[Any], rows: np.ndarray, **more: list[Any]) -> Path:
    lists = pa.array([*rows], pa.list_(pa.float32()))
    pq.write_table(pa.table({"item_id": ids, "vector": lists, **more}), path)
    return path


def extended(items: Path, codebook: Path) -> None:
    extend(open_items(str(items), None, None, None), codebook, None, lambda *_: None)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    made(write(folder / "items.parquet", IDS, vectors()), folder / "codebook")
    return folder / "codebook"


@pytest.fixture
def codebook(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "kept"))


def test_the_same_items_in_other_forms_get_the_same_sids(kept: Path, tmp_path: Path) -> None:
    rows = vectors()
    np.save(tmp_path / "items.npy", rows.astype(np.float64))
    (tmp_path / "ids.txt").write_text("".join(f"{name}\n" for name in IDS))
    lines = [
        json.dumps({"sku": name, "e": row.tolist()}) for name, row in zip(IDS, rows, strict=True)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    ids, fixed = pa.array(IDS), pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIMS)
    other = pa.table({"title": ids, "tags": [[0.5]] * ITEMS, "emb": fixed, "sku": ids})
    (tmp_path / "parts").mkdir()
    pq.write_table(other.slice(0, 101), tmp_path / "parts" / "a.parquet")
    pq.write_table(other.slice(101), tmp_path / "parts" / "b.parquet")
    expected = pq.read_table(kept / "sids.parquet").to_pydict()
    for number, items in enumerate(
        (
            open_items(str(tmp_path / "items.npy"), tmp_path / "ids.txt", None, None),
            open_items(str(tmp_path / "items.jsonl"), None, None, None),
            open_items(str(tmp_path / "parts"), None, "sku", "emb"),
        )
    ):
        out = tmp_path / f"out{number}"
        make_codebook(items, CodebookSpec(out, (31, 16, 8)), learn_codebook, lambda *_: None)
        assert pq.read_table(out / "sids.parquet").to_pydict() == expected


def changed(row: int, value: object) -> np.ndarray:
    rows = vectors()
    rows[row, 3] = value
    return rows


IDS = [f"sku-{i}" for i in range(ITEMS)]
FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "NaN": (
        lambda at: write(at / "i.parquet", IDS, changed(5, np.nan)),
        "i.parquet row 6, item 'sku-5': vector 'nan at position 3': not a number",
    ),
    "other length": (
        lambda at: write_lists(at, [[1.0, 2.0], [3.0]]),
        "row 2, item 'b': vector '1 numbers': others have 2",
    ),
    "repeated id": (
        lambda at: write(at / "i.parquet", [*IDS[:-1], "sku-70"], vectors()),
        f"item sku-70 is in rows 71 and {ITEMS}; give each item once",
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
        "no row has a vector; there are no items to give SIDs to",
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


def made(items: Path, out: Path) -> None:
    spec = CodebookSpec(out, (31, 16, 8))
    make_codebook(open_items(str(items), None, None, None), spec, learn_codebook, lambda *_: None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_table_is_refused_by_row_and_name(name: str, tmp_path: Path) -> None:
    make, fault = FAULTS[name]
    with pytest.raises(InputError, match=re.escape(fault)):
        made(make(tmp_path), tmp_path / "c")
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
        (lambda c: (c / "codebook.safetensors").write_bytes(b"\x80\x04pickle"), "or is damaged"),
        (lambda c: (c / "codebook.yaml").unlink(), "no codebook here: expected a folder with"),
        (edited("codebook.yaml", "seed: 1", "sead: 1"), "unknown key 'sead'"),
        (edited("codebook.yaml", "dims: 9", "dims: 8"), "are not those of 31 codes and 8 dims"),
        (edited("codebook.yaml", "[31, 16, 8]", "[30, 16, 8]"), "level 0: centres [31, 9]"),
        (edited("codebook.yaml", "format: 1", "format: 2"), "a newer version of grace wrote it"),
        (edited("codebook.yaml", 'sid_space: "', 'sid_space: "x'), "has SID space"),
        (
            lambda c: (c / "sids.parquet").write_bytes(b"PAR1"),
            "sids.parquet: not a readable Parquet file",
        ),
    ],
)
def test_a_damaged_codebook_is_named(
    damage: Callable[[Path], None], fault: str, codebook: Path, tmp_path: Path
) -> None:
    damage(codebook)
    items = write(tmp_path / "new.parquet", ["new"], vectors()[:1])
    with pytest.raises(GraceError, match=re.escape(fault)):
        extended(items, codebook)


def test_ids_of_another_type_than_the_table_s_are_refused(codebook: Path, tmp_path: Path) -> None:
    items = write(tmp_path / "new.parquet", [1, 2], vectors()[:2])
    with pytest.raises(InputError, match="its ids are int64, those of"):
        extended(items, codebook)


def test_vectors_of_another_length_than_the_codebook_s_are_refused(
    codebook: Path, tmp_path: Path
) -> None:
    items = write(tmp_path / "new.parquet", ["new"], vectors()[:1, :7])
    with pytest.raises(InputError, match=r"vectors of 7 numbers, but .* needs 9"):
        extended(items, codebook)
