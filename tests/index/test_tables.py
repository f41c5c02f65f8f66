"""Table files of any format at any address: their rows come as they are, or not at all."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.tables.addresses import Format, ending_format, within
from grace.index.tables.table_file import TableFile, open_table, table_files


def rows_of(table: TableFile, columns: Sequence[str] | None = None, rows: int = 2) -> list[Any]:
    batches = list(table.batches(columns or table.schema.names, rows))
    assert all(0 < batch.num_rows <= rows for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def written(file: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return str(file)


CSV = 'id,Country Code,name\n01,US|CA,"a, ""b""\nc"\n,,""\n3,NA,null\n'
CSV_ROWS: list[dict[str, str | None]] = [
    {"id": "01", "Country Code": "US|CA", "name": 'a, "b"\nc'},
    {"id": None, "Country Code": None, "name": None},
    {"id": "3", "Country Code": "NA", "name": "null"},
]


@pytest.mark.parametrize("name", ["ads.csv", "ads.csv.gz", "ads.CSV"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_is_text_and_its_empty_cells_are_null(tmp_path: Path, name: str, mark: str) -> None:
    table = open_table(written(tmp_path / name, mark + CSV))
    assert (table.format, table.rows) == (Format.CSV, None)
    assert table.schema == pa.schema([(each, pa.string()) for each in CSV_ROWS[0]])
    assert rows_of(table) == CSV_ROWS
    assert rows_of(table, ["name", "id"]) == [
        {"name": row["name"], "id": row["id"]} for row in CSV_ROWS
    ]
    assert table.count_rows() == 3


JSON_ROWS: list[dict[str, Any]] = [
    {"id": 7, "day": "2026-01-31", "tags": ["a", "2026-01-31"]},
    {"id": 8, "day": None, "tags": []},
    {"id": 9, "price": 1.5, "tags": None},
    {"late": True},
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz"])
def test_json_lines_may_add_columns_in_any_line(tmp_path: Path, name: str) -> None:
    lines = "\n\n".join(json.dumps(row) for row in JSON_ROWS)
    table = open_table(written(tmp_path / name, f"\ufeff{lines}"))
    assert (table.format, table.rows) == (Format.JSONL, 4)
    assert table.schema.field("day").type == pa.string()
    assert table.schema.field("tags").type == pa.list_(pa.string())
    columns = ["late", "tags", "day", "id", "price"]
    assert rows_of(table, columns) == [
        {name: row.get(name) for name in columns} for row in JSON_ROWS
    ]


def test_lists_of_nulls_alone_keep_their_elements(tmp_path: Path) -> None:
    lists: list[list[None] | None] = [[None], None, [None, None], []]
    lines = "".join(json.dumps({"id": at, "x": each}) + "\n" for at, each in enumerate(lists))
    table = open_table(written(tmp_path / "a.jsonl", lines))
    assert [row["x"] for row in rows_of(table, ["x"])] == lists


def test_json_lines_of_many_blocks_are_one_table(tmp_path: Path) -> None:
    filling = "x" * 1000
    rows = [{"id": n, "filling": filling} for n in range(40_000)]
    rows[-1]["filling"] = 2**20 * "y"
    rows.append({"id": 40_000, "filling": "", "late": ["z"]})
    table = open_table(
        written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    )
    assert table.rows == len(rows)
    found = rows_of(table, ["id", "late"], rows=1000)
    assert [row["id"] for row in found] == list(range(40_001))
    assert [row["late"] for row in found] == [None] * 40_000 + [["z"]]


def test_parquet_is_read_group_by_group(tmp_path: Path) -> None:
    path = tmp_path / "ads.parquet"
    values = pa.table(
        {"id": [1, 2, 3, 4, 5], "id.x": list("abcde"), "y": [[1], None, [], [2], [3]]}
    )
    pq.write_table(values, path, row_group_size=3)
    table = open_table(str(path))
    assert (table.format, table.rows) == (Format.PARQUET, 5)
    assert table.schema.names == ["id", "id.x", "y"]
    assert rows_of(table, ["y", "id"]) == values.select(["y", "id"]).to_pylist()


def test_views_of_parquet_are_plain_texts(tmp_path: Path) -> None:
    """Polars writes them."""
    path, views = tmp_path / "ads.parquet", pa.list_(pa.string_view())
    columns = {
        "x": pa.array(["a", None, ""], pa.string_view()),
        "y": pa.array([["a"], [], None], views),
    }
    pq.write_table(pa.table(columns), path)
    table = open_table(str(path))
    assert table.schema.types == [pa.string(), pa.list_(pa.string())]
    assert rows_of(table, ["y", "x"]) == [
        {"y": ["a"], "x": "a"},
        {"y": [], "x": None},
        {"y": None, "x": ""},
    ]


FAULTS: dict[str, tuple[str, str | bytes, str]] = {
    "csv as parquet": ("a.parquet", CSV, "a.parquet: not a readable Parquet file: .*ends by its"),
    "csv as json": ("a.jsonl", CSV, "a.jsonl: row 1: JSON parse error: .*; write one JSON object"),
    "json array": ("a.json", '[{"a": 1}]', r"row 1: JSON parse .*\(an array is none\)"),
    "parquet as csv": ("a.csv", b"PAR1\x15\x04\x00\xff,\n1\n", "a.csv: not a readable CSV"),
    "unknown ending": ("a.txt", CSV, "does not state the table's format; .* ends by its format"),
    "empty csv": ("a.csv", "", "a.csv: not a readable CSV file: Empty CSV file"),
    "csv that is no text": ("a.csv", b"a,b\n1,\xff\n", "a.csv: damaged near row 1: .*UTF8"),
    "row too short": (
        "a.csv",
        "a,b\n1,2\n3\n",
        "a readable CSV.* row 2: Expected 2 columns, got 1",
    ),
    "row of the second block": ("a.csv", "a,b\n" + 4**10 * "1,2\n" + "1,2,3\n", "row 1048577: Exp"),
    "column twice": ("a.csv", "a,b,a\n1,2,3\n", "a.csv: column 'a' appears twice"),
    "unclosed cell": ("a.csv", 'a,b\n1,"x\n2,y\n3,z\n', "a.csv: a cell in quotes is not closed"),
    "two unclosed cells": (  # the first would take the row of the second, and its rules
        "a.csv",
        'ad_id,title,country\n1,"5 lamp,US\n2,"7 lamp,FR\n',
        "a.csv: line 3: a quotation mark inside a cell",
    ),
    "inches": ("a.csv", 'a,b\n1,5" lamp\n', "a.csv: line 2: a quotation mark inside a cell"),
    "json of two types": ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', "changed from number to string"),
    "json cut off": ("a.jsonl", '{"a": 1}\n{"a": 2', "row 2: JSON parse error: Missing a comma"),
    "json keys in two cases": (
        "a.jsonl",
        b'{"id": 1, "country": "US"}\n{"id": 2, "Country": "US"}',
        "a.jsonl: keys 'country' and 'Country' differ only in case; write the same key",
    ),
    "json that is no text": ("a.jsonl", b'{"a": "\xff"}', "a.jsonl: row 1: 'utf-8' codec"),
    "json with a key twice": ("a.jsonl", '{"a": 1, "a": 2}', "was specified twice"),
    "no gzip": ("a.jsonl.gz", gzip.compress(b'{"a": 1}' * 99)[:-9], "a.jsonl.gz"),
}


def test_quotation_marks_are_checked_across_the_borders_of_blocks(tmp_path: Path) -> None:
    """A cell of 8 MiB ends in a later block of the text than it begins in, and so does its row."""
    for extra in range(3):
        text = '\ufeff"a",b\r\n' + "".join(
            f'"{at}","{"x" * (4 << 20)}{"y" * extra}"""\r\n' for at in range(3)
        )
        path = written(tmp_path / f"{extra}.csv", text)
        rows = rows_of(open_table(path))
        assert [row["a"] for row in rows] == ["0", "1", "2"]
        assert {row["b"][-2:] for row in rows} == {('y"' if extra else 'x"')}
        path = written(tmp_path / f"{extra}.csv", text[:-3] + '"z\r\n"\r\n')
        with pytest.raises(InputError, match="line 4: a quotation mark inside a cell"):
            rows_of(open_table(path))


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_read_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    pa.set_cpu_count(2)  # with several threads, Arrow may not count rows
    file, content, fault = FAULTS[name]
    (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=fault):
        rows_of(open_table(str(tmp_path / file)))


def test_a_column_that_changes_its_type_in_a_later_block_is_refused(tmp_path: Path) -> None:
    lines = [json.dumps({"id": n, "x": "x" * 500}) for n in range(40_000)]
    path = written(tmp_path / "a.jsonl", "\n".join([*lines, json.dumps({"id": "40000"})]))
    with pytest.raises(
        InputError, match=r"changes its type near row [0-9]+: .* one type per column"
    ):
        open_table(path)


def test_a_folder_means_its_tables_of_one_format(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv.gz", "_notes.json", ".hidden.csv"):
        written(tmp_path / name, "x\n1\n")
    (tmp_path / "_SUCCESS").write_text("")
    found = table_files([str(tmp_path)])
    assert [Path(table.address).name for table in found] == ["a.csv.gz", "b.csv"]
    written(tmp_path / "c.jsonl", '{"x": 1}')
    with pytest.raises(InputError, match="with both CSV and JSON lines; name the files"):
        table_files([str(tmp_path)])
    (tmp_path / "c.jsonl").unlink()
    (tmp_path / "more").mkdir()
    with pytest.raises(InputError, match=r"no table in this folder: none ends in \*\.parquet"):
        table_files([str(tmp_path / "more")])
    with pytest.raises(InputError, match="given twice"):
        table_files([str(tmp_path / "b.csv")] * 2)
    for other in ("more/d.csv", "d.CSV"):
        written(tmp_path / other, "x\n2\n")
        with pytest.raises(InputError, match=rf"{other}: .* directly in it"):
            table_files([str(tmp_path)])
        (tmp_path / other).unlink()


@pytest.mark.parametrize("name", ["ads.csv", "ads.csv.gz", "ads.jsonl", "ads.parquet"])
def test_a_url_is_opened_as_it_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a b" / name
    path.parent.mkdir()
    if name == "ads.parquet":
        pq.write_table(pa.table({"x": ["1", "2"]}), path)
    else:
        written(path, '{"x": "1"}\n{"x": "2"}\n' if "json" in name else "x\n1\n2\n")
    for address in (path.as_uri(), path.parent.as_uri()):
        (table,) = table_files([address])
        assert table.address == path.as_uri().replace("%20", " " if "%20" not in address else "%20")
        assert rows_of(table) == [{"x": "1"}, {"x": "2"}]


def test_the_query_of_a_url_stays_at_its_end() -> None:
    assert within("s3://shop/raw?x=a.csv", "ads.jsonl.gz") == "s3://shop/raw/ads.jsonl.gz?x=a.csv"
    assert ending_format("s3://shop/raw/ads.jsonl.gz?x=a.csv") is Format.JSONL


def test_a_scheme_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^web://x/a.csv: not a URL that can be opened"):
        table_files(["web://x/a.csv"])
    with pytest.raises(InputError, match="no such file or folder"):
        table_files([str(tmp_path / "gone.csv")])
