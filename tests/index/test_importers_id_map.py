"""An id map gives items of any name a number, once and for all."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.importers import import_sids
from support.imports import import_spec, imported, rejects_of, run_import

ONE_ITEM = '{"0": ["<a_93>", "<b_85>"]}'


def test_an_id_map_numbers_items_and_keeps_the_numbers(tmp_path: Path) -> None:
    map_file = tmp_path / "map.parquet"
    first = '{"item_id": "B07", "token_ids": [1]}\n{"item_id": "é", "token_ids": [2]}'
    spec = import_spec(tmp_path / "items.jsonl", first, id_map=map_file)
    assert imported(spec)[0] == {0: (1,), 1: (2,)}
    second = '{"item_id": 7, "token_ids": [3]}\n{"item_id": "é", "token_ids": [4]}'
    spec = import_spec(tmp_path / "items.jsonl", second, id_map=map_file, force=True)
    assert imported(spec)[0] == {2: (3,), 1: (4,)}
    assert pq.read_table(map_file).to_pylist() == [
        {"item_id": "B07", "ad_id": 0},
        {"item_id": "é", "ad_id": 1},
        {"item_id": "7", "ad_id": 2},
    ]


def test_a_map_with_gaps_never_gives_a_number_twice(tmp_path: Path) -> None:
    map_file = tmp_path / "map.parquet"
    known = {"item_id": pa.array(["b", "a"]), "ad_id": pa.array([7, 1])}
    pq.write_table(pa.table(known), map_file)
    lines = "".join(f'{{"item_id": "{name}", "token_ids": [1]}}\n' for name in "bcde")
    assert sorted(imported(import_spec(tmp_path / "x.jsonl", lines, id_map=map_file))[0]) == [
        7,
        8,
        9,
        10,
    ]
    assert pq.read_table(map_file)["ad_id"].to_pylist() == [7, 1, 8, 9, 10]


def test_imports_at_once_give_different_numbers_to_different_items(tmp_path: Path) -> None:
    """The second import starts when the first has read the map, and names the map by a link."""
    map_file, other_name = tmp_path / "map.parquet", tmp_path / "linked.parquet"
    other_name.symlink_to(map_file)
    (tmp_path / "second").mkdir()
    line = '{"item_id": "%s", "token_ids": [1]}'
    first = import_spec(tmp_path / "x.jsonl", line % "one", id_map=map_file)
    second = import_spec(tmp_path / "second" / "x.jsonl", line % "two", id_map=other_name)
    others: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as other:

        def start_the_other(step: str, done: int, _total: int) -> None:
            if step == "read bytes" and done and not others:
                others.append(other.submit(imported, second))
                wait(others, timeout=0.5)

        import_sids(first, start_the_other)
        ads, _ = others[0].result()
    assert list(ads) == [1]
    assert pq.read_table(map_file).to_pylist() == [
        {"item_id": "one", "ad_id": 0},
        {"item_id": "two", "ad_id": 1},
    ]


def test_a_map_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    spec = import_spec(tmp_path / "x.json", ONE_ITEM, id_map=tmp_path / "x.json" / "map.parquet")
    with pytest.raises(InputError, match=r"map\.parquet: cannot be locked: .*; make its folder"):
        run_import(spec)


@pytest.mark.parametrize("name", ["", "x" * 1025, "\\ud800"], ids=["empty", "long", "surrogate"])
def test_a_name_that_is_no_text_gets_no_number(tmp_path: Path, name: str) -> None:
    lines = f'{{"item_id": "{name}", "token_ids": [1]}}\n{{"item_id": "a", "token_ids": [1]}}'
    spec = import_spec(tmp_path / "x.jsonl", lines, id_map=tmp_path / "m.parquet", max_rejects=1)
    ads, _ = imported(spec)
    assert ads == {0: (1,)}
    assert rejects_of(spec)[0]["column"] == "item_id"


BAD_MAPS = {
    "other columns": {"a": pa.array([1])},
    "null": {"item_id": pa.array([None], pa.string()), "ad_id": pa.array([1])},
    "negative": {"item_id": pa.array(["a"]), "ad_id": pa.array([-1])},
    "twice": {"item_id": pa.array(["a", "b"]), "ad_id": pa.array([1, 1])},
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_file_that_is_no_id_map_is_refused(tmp_path: Path, name: str) -> None:
    map_file = tmp_path / "map.parquet"
    pq.write_table(pa.table(BAD_MAPS[name]), map_file)
    with pytest.raises(InputError, match="not an id map"):
        run_import(import_spec(tmp_path / "x.json", ONE_ITEM, id_map=map_file))
    map_file.write_text("no")
    with pytest.raises(InputError, match="not a readable id map"):
        run_import(import_spec(tmp_path / "x.json", ONE_ITEM, id_map=map_file))


def test_an_id_without_a_good_copy_is_in_no_map(tmp_path: Path) -> None:
    lines = '{"item_id": "bad", "token_ids": []}\n{"item_id": "good", "token_ids": [1]}'
    map_file = tmp_path / "map.parquet"
    imported(import_spec(tmp_path / "x.jsonl", lines, id_map=map_file, max_rejects=1))
    assert pq.read_table(map_file).to_pylist() == [{"item_id": "good", "ad_id": 0}]
