"""Items: an id map numbers them once and for all, and each ad has the SID of its item."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder.item_sids import ItemSids, read_item_sids
from grace.index.builder.sharding.scratch import map_arrays, save_arrays
from grace.index.tables.item_numbers import IdMap, map_lock
from grace.index.tables.sid_table import open_sid_table

SIZES = (300, 7)
LISTS = pa.list_(pa.uint16())


def read(path: Path, names: IdMap | None = None) -> ItemSids:
    return read_item_sids(open_sid_table(str(path)), names, SIZES, lambda done: None)


def sids_of(sids: ItemSids, ad_ids: list[int]) -> list[tuple[int, ...] | None]:
    places = sids.places(np.array(ad_ids, np.int64)).tolist()
    return [tuple(sids.tokens[at].tolist()) if at >= 0 else None for at in places]


@pytest.mark.parametrize("in_order", [True, False])
def test_each_ad_has_the_sid_of_its_item(tmp_path: Path, in_order: bool) -> None:
    rng = np.random.default_rng(5)
    ids = rng.choice(9_000, 3_001, replace=False)
    ids = np.sort(ids) if in_order else ids
    plain = {int(i): (int(a), int(b)) for i, a, b in zip(ids, ids % 299, ids % 7, strict=True)}
    columns = {
        "sid": pa.array(list(plain.values()), LISTS),
        "item_id": pa.array(list(plain), pa.uint32() if in_order else pa.int64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "sids.parquet", row_group_size=777)
    sids = read(tmp_path)
    asked = rng.integers(0, 9_100, 2_003).tolist()
    assert sids_of(sids, asked) == [plain.get(ad) for ad in asked]
    save_arrays(sids, tmp_path)
    assert sids_of(map_arrays(ItemSids, tmp_path), asked) == [plain.get(ad) for ad in asked]


def test_an_id_map_names_the_items_and_the_others_belong_to_no_ad(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"item_id": "é", "sid": [1, 2]},
        {"item_id": "7", "sid": [3, 4]},
        {"item_id": "unknown", "sid": [5, 6]},
    ]
    path = tmp_path / "sids.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sids = read(path, IdMap({"7": 0, "é": 5, "new": 6}))
    assert sids_of(sids, [0, 5, 6, -1]) == [(3, 4), (1, 2), None, None]
    assert sids_of(read(path, IdMap({"new": 6})), [6, 0]) == [None, None]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no sid": ({"item_id": [1], "code": [[1, 2]]}, "column 'sid', of a table of SIDs, is missing"),
    "floats": ({"item_id": [1.5], "sid": [[1, 2]]}, "column 'item_id' must be int64 or text"),
    "text": ({"item_id": [1], "sid": ["1 2"]}, "column 'sid' must be list<uint16>, got string"),
    "null sid": ({"item_id": [1, 2], "sid": [[1, 2], None]}, "row 2, item 2: sid: is null"),
    "twice": ({"item_id": [5, 3, 5], "sid": [[1, 2]] * 3}, "the item of ad 5 has two SIDs; keep"),
    "none": ({"item_id": pa.array([], pa.int64()), "sid": pa.array([], LISTS)}, "has no items"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_that_does_not_say_the_sids_is_refused(tmp_path: Path, name: str) -> None:
    columns, fault = FAULTS[name]
    pq.write_table(pa.table(columns), tmp_path / "sids.parquet")
    with pytest.raises(InputError, match=f"sids.parquet:? ?{fault}"):
        read(tmp_path)


def test_a_csv_of_sids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sids.csv").write_text("item_id,sid\n1,1 2\n")
    with pytest.raises(InputError, match="a CSV has no lists; write the SIDs as Parquet"):
        read(tmp_path / "sids.csv")


def test_a_map_with_gaps_never_gives_a_number_twice(tmp_path: Path) -> None:
    file = tmp_path / "map.parquet"
    pq.write_table(pa.table({"item_id": ["b", "a"], "ad_id": [7, 1]}), file)
    grown = IdMap.read(file)
    grown.add(["b", "c", "", "x" * 1025, "\ud800", "c", "d"])
    grown.write(file)
    again = IdMap.read(file)
    assert dict(again.items()) == {"b": 7, "a": 1, "c": 8, "d": 9}
    assert again.names(np.array([9, 1])) == ["d", "a"]
    assert again.digest(8) == grown.digest(8) != again.digest(9)


BAD_MAPS = {
    "other columns": {"a": pa.array([1])},
    "null": {"item_id": pa.array([None], pa.string()), "ad_id": pa.array([1])},
    "negative": {"item_id": pa.array(["a"]), "ad_id": pa.array([-1])},
    "twice": {"item_id": pa.array(["a", "b"]), "ad_id": pa.array([1, 1])},
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_file_that_is_no_id_map_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "map.parquet"
    pq.write_table(pa.table(BAD_MAPS[name]), file)
    with pytest.raises(InputError, match="not an id map"):
        IdMap.read(file)
    file.write_text("no")
    with pytest.raises(InputError, match="not a readable id map"):
        IdMap.read(file)


def test_a_map_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fault = r"map\.parquet: cannot be locked: .*; make its folder"
    with pytest.raises(InputError, match=fault), map_lock(tmp_path / "file" / "map.parquet"):
        pass
