"""An id map gives items of any name a number, once and for all."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.tables.item_numbers import IdMap, map_lock


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
