"""Published SIDs become a table, an id map numbers items, and each ad has the SID of its item."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.builder.item_sids import ItemSids, read_item_sids
from grace.index.builder.sharding.scratch import map_arrays, save_arrays
from grace.index.import_sids import import_sids
from grace.index.tables.item_numbers import IdMap, map_lock
from grace.index.tables.sid_table import open_sid_table
from support.builds import silent

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


LETTER = """{"0": ["<a_93>", "<b_85>", "<c_227>", "<d_174>"],
 "1": ["<a_93>", "<b_85>", "<c_27>", "<d_0>"],
 "12100": ["<a_119>", "<b_123>", "<c_72>", "<d_189>"]}"""


def index_of(folder: Path, content: str | bytes, **changes: Any) -> ImportSpec:
    source = folder / "x.index.json"
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    return replace(ImportSpec(source, folder / "sids.parquet", "beauty-1"), **changes)


def imported(spec: ImportSpec) -> dict[int | str, tuple[int, ...]]:
    """The SID of each item in the table."""
    report = import_sids(spec, silent)
    table = pq.read_table(spec.out)
    assert table.schema.field("item_id").type in (pa.int64(), pa.string())
    assert table.schema.field("sid").type == pa.list_(pa.uint16())
    sids = [tuple(sid) for sid in table["sid"].to_pylist()]
    assert (report.items, report.sids) == (len(sids), len({*sids}))
    return dict(zip(table["item_id"].to_pylist(), sids, strict=True))


def refusal(spec: ImportSpec) -> str:
    """What an import says that writes nothing."""
    before = {path: path.read_bytes() for path in spec.source.parent.iterdir() if path.is_file()}
    with pytest.raises(InputError) as caught:
        import_sids(spec, silent)
    after = {path: path.read_bytes() for path in spec.source.parent.iterdir() if path.is_file()}
    assert after == before
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_a_letter_index_becomes_a_table_with_derived_vocabularies(tmp_path: Path) -> None:
    spec = index_of(tmp_path, LETTER)
    ads = imported(spec)
    assert ads == {0: (93, 85, 227, 174), 1: (93, 85, 27, 0), 12100: (119, 123, 72, 189)}
    metadata = pq.read_schema(spec.out).metadata
    assert metadata[b"grace.sid_space"] == b"beauty-1"
    assert metadata[b"grace.vocab_sizes"] == b"120,124,228,190"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["7", "8", str(2**63 - 1)], [7, 8, 2**63 - 1]),
        (["7", "B07", "é"], ["7", "B07", "é"]),
        (["7", "007"], ["7", "007"]),
        (["7", str(2**63)], ["7", str(2**63)]),
        (["7", "-1"], ["7", "-1"]),
    ],
    ids=["integers", "texts", "another spelling", "above int64", "negative"],
)
def test_ids_are_integers_if_all_are_and_texts_otherwise(
    tmp_path: Path, given: list[str], written: list[int | str]
) -> None:
    text = json.dumps({each: [1, "<b_65535>"] for each in given})
    assert imported(index_of(tmp_path, text)) == dict.fromkeys(written, (1, 65535))


BAD_ITEMS: dict[str, tuple[str, str]] = {
    "large": ('"9": [1, 65536, 2]', "row 2, item '9': sid '65536': token at position 1 is not 0"),
    "negative": ('"9": [1, 2, -1]', "position 2 is not 0 to 65535"),
    "true": ('"9": [true, 1, 1]', "position 0 is not like <a_12> or 12"),
    "null token": ('"9": [1, 2, null]', "not like <c_12>"),
    "other letter": ('"9": ["<b_1>", 1, 1]', "must begin with <a_"),
    "short": ('"9": [1, 2]', "the SID length is 3"),
    "text sid": ('"9": "1,2,3"', "is not a list of tokens"),
    "outside": ('"9": [1, 10, 3]', "token at position 1 is outside the vocabulary of 10"),
    "empty id": ('"": [1, 2, 3]', "item_id '': is empty"),
    "twice": ('"9": [1, 2, 3], "9": [1, 2]', "key '9' occurs twice"),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_faulty_item_ends_the_import_by_name(tmp_path: Path, name: str) -> None:
    item, message = BAD_ITEMS[name]
    text = f'{{"100": [1, 2, 3], {item}, "102": [1, 2, 3]}}'
    said = refusal(index_of(tmp_path, text, vocab_sizes=(3, 10, 5)))
    assert message in said
    assert "x.index.json" in said


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    for content, message in (
        (b'{"0": ["\xff"]}', "not JSON that we read: 'utf-8' codec"),
        (" { } ", "no items; nothing to import"),
    ):
        assert message in refusal(index_of(tmp_path, content))


def test_a_token_that_only_tells_items_apart_can_be_cut_off(tmp_path: Path) -> None:
    """MiniOneRec appends one where items collide; ads may share a SID."""
    text = '{"0": ["<a_1>", "<b_2>", "<d_0>"], "1": ["<a_1>", "<b_2>"]}'
    assert imported(index_of(tmp_path, text, sid_length=2)) == {0: (1, 2), 1: (1, 2)}
    text = '{"0": [1, 2, 0], "1": [1, 2, 1]}'
    spec = index_of(tmp_path, text, vocab_sizes=(3, 3), out=tmp_path / "more.parquet")
    assert "sid '3 tokens': the SID length is 2" in refusal(spec)
    assert imported(replace(spec, sid_length=2)) == {0: (1, 2), 1: (1, 2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sid_space": ""}, "1 to 255 printable"),
        ({"vocab_sizes": (256, 0)}, "each must be 1 to 65536"),
        ({"vocab_sizes": (256, 256), "sid_length": 3}, "leave one option out"),
        ({"sid_length": 17}, "1 to 16"),
        ({"source": Path("gone.json")}, "no such file"),
        ({"source": Path("gone.jsonl")}, "must end in .json"),
        ({"out": Path("no/such/sids.parquet")}, "no such folder"),
    ],
)
def test_impossible_options_are_refused_before_the_work(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        import_sids(replace(index_of(tmp_path, LETTER), **changes), silent)


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    spec = index_of(tmp_path, LETTER)
    imported(spec)
    for out in (spec.out, spec.source, tmp_path):
        fault = refusal(replace(spec, out=out))
        assert f"{out}: is already there; name another --out, or move it away" in fault
