"""Published Semantic IDs become a table of SIDs; a file with an item that cannot is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.import_sids import import_sids
from support.builds import silent

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
