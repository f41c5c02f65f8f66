"""Published Semantic IDs become a table of SIDs; an item that cannot is listed by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError, RejectedAdsError
from support.imports import import_spec, imported, rejects_of, run_import

LETTER = """{"0": ["<a_93>", "<b_85>", "<c_227>", "<d_174>"],
 "1": ["<a_93>", "<b_85>", "<c_27>", "<d_0>"],
 "12100": ["<a_119>", "<b_123>", "<c_72>", "<d_189>"]}"""


def test_a_letter_index_becomes_a_table_with_derived_vocabularies(tmp_path: Path) -> None:
    spec = import_spec(tmp_path / "Beauty.index.json", LETTER)
    ads, report = imported(spec)
    assert ads == {0: (93, 85, 227, 174), 1: (93, 85, 27, 0), 12100: (119, 123, 72, 189)}
    assert report.vocab_sizes == (120, 124, 228, 190)
    assert (report.read, report.items, report.sids, report.rejects) == (3, 3, 3, {})
    metadata = pq.read_schema(spec.out).metadata
    assert metadata[b"grace.sid_space"] == b"beauty-1"
    assert metadata[b"grace.vocab_sizes"] == b"120,124,228,190"


@pytest.mark.parametrize("items", [1, 63, 3000])
def test_an_index_longer_than_the_window_reads_the_same(tmp_path: Path, items: int) -> None:
    """Values that straddle the border of two reads, and numbers that end at one."""
    rng = np.random.default_rng(items)
    wide = {str(i): rng.integers(0, 65536, 3).tolist() for i in rng.permutation(items)}
    text = json.dumps(wide, indent=1).replace("\n", " " * 700 + "\r\n\t")
    ads, report = imported(import_spec(tmp_path / "x.json", text))
    assert ads == {int(item): tuple(tokens) for item, tokens in wide.items()}
    assert report.read == items


def test_json_lines_may_hold_numbers_or_token_texts_and_other_keys(tmp_path: Path) -> None:
    lines = """{"item_id": 7, "token_ids": [1, 2, 3], "price": 1.5}

{"token_ids": ["<a_4>", "<b_0>", "<c_65535>"], "item_id": "8"}\r
{"item_id": 9, "token_ids": [1, 2, 3]}"""
    ads, report = imported(import_spec(tmp_path / "items.jsonl", lines))
    assert ads == {7: (1, 2, 3), 8: (4, 0, 65535), 9: (1, 2, 3)}
    assert (report.vocab_sizes, report.sids) == ((5, 3, 65536), 2)


ITEM_IDS: dict[str, tuple[list[int | str], list[int | str]]] = {
    "integers": ([7, "8", 2**63 - 1], [7, 8, 2**63 - 1]),
    "texts": ([7, "B07", "é"], ["7", "B07", "é"]),
    "another spelling": (["7", "007"], ["7", "007"]),
    "above int64": ([7, 2**63], ["7", str(2**63)]),
    "negative": ([7, -1], ["7", "-1"]),
}


@pytest.mark.parametrize("name", ITEM_IDS)
def test_ids_are_integers_if_all_are_and_texts_otherwise(tmp_path: Path, name: str) -> None:
    given, written = ITEM_IDS[name]
    lines = "".join(json.dumps({"item_id": each, "token_ids": [1]}) + "\n" for each in given)
    assert list(imported(import_spec(tmp_path / "items.jsonl", lines))[0]) == written


BAD_LINES: dict[str, tuple[str, str, str]] = {
    "nan": ('{"item_id": 1, "token_ids": [NaN, 1, 2]}', "line", "not JSON"),
    "no json": ("{item_id: 1}", "line", "not JSON"),
    "not utf-8": ('{"item_id": "\udcff"}', "line", "UTF-8"),
    "deep": ("[" * 100_000, "line", "nested too deeply"),
    "digits": ('{"item_id": 1, "token_ids": [%s]}' % ("9" * 5000), "line", "not JSON"),
    "large": ('{"item_id": 1, "token_ids": [1, 65536, 2]}', "sid", "position 1 is not 0 to 65535"),
    "negative": ('{"item_id": 1, "token_ids": [1, 2, -1]}', "sid", "position 2 is not 0 to"),
    "fraction": ('{"item_id": 1, "token_ids": [1, 2.0, 3]}', "sid", "position 1 is not like"),
    "true": ('{"item_id": 1, "token_ids": [true, 1, 1]}', "sid", "position 0 is not like"),
    "null token": ('{"item_id": 1, "token_ids": [1, 2, null]}', "sid", "not like <c_12>"),
    "nested lists": (
        '{"item_id": 1, "token_ids": [%s]}' % ("[" * 900 + "]" * 900),
        "sid",
        "position 0 is not like",
    ),
    "nested": ('{"item_id": 1, "token_ids": [[1], 2, 3]}', "sid", "position 0 is not like"),
    "other letter": ('{"item_id": 1, "token_ids": ["<b_1>", 1, 1]}', "sid", "begin with <a_"),
    "short": ('{"item_id": 1, "token_ids": [1, 2]}', "sid", "length is 3"),
    "text sid": ('{"item_id": 1, "token_ids": "1,2,3"}', "sid", "not a list"),
    "no sid": ('{"item_id": 1}', "token_ids", "missing"),
    "no id": ('{"token_ids": [1, 2, 3]}', "item_id", "missing"),
    "null id": ('{"item_id": null, "token_ids": [1, 2, 3]}', "item_id", "neither text nor"),
    "twice": ('{"item_id": 1, "item_id": 2, "token_ids": [1, 2, 3]}', "line", "not JSON"),
    "an array": ("[1, 2, 3]", "line", "not an object"),
    "long id": (
        '{"item_id": "%s", "token_ids": [1, 2, 3]}' % ("x" * 1025),
        "item_id",
        "is longer than 1024",
    ),
    "surrogate id": (
        '{"item_id": "\\ud800", "token_ids": [1, 2, 3]}',
        "item_id",
        "half of a surrogate pair",
    ),
    "empty id": ('{"item_id": "", "token_ids": [1, 2, 3]}', "item_id", "is empty"),
    "long": ('{"item_id": 1, "title": "%s"}' % ("x" * 2**20), "line", "longer than"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_faulty_line_is_listed_with_its_place_and_reason(tmp_path: Path, name: str) -> None:
    line, column, reason = BAD_LINES[name]
    good = '{"item_id": 100, "token_ids": [1, 2, 3]}\n'
    content = (good + "\n" + line + "\n" + good.replace("100", "102")).encode(
        errors="surrogateescape"
    )
    spec = import_spec(tmp_path / "items.jsonl", content, max_rejects=1)
    ads, report = imported(spec)
    assert sorted(ads) == [100, 102]
    (listed,) = rejects_of(spec)
    assert (listed["row"], listed["column"]) == (3, column)
    assert reason in listed["reason"]
    assert len(json.dumps(listed)) < 1000
    assert report.rejects == {f"{column}: {listed['reason']}": 1}
    spec.out.unlink()
    with pytest.raises(
        RejectedAdsError, match=r"--max-rejects allows 0; first: .* row 3"
    ) as caught:
        run_import(replace(spec, max_rejects=0))
    assert len(str(caught.value)) < 1000
    assert not spec.out.exists()


BAD_INDEX: dict[str, tuple[str | bytes, str]] = {
    "an array": ('[["<a_1>"]]', "expected an object of item ids"),
    "empty": ("", "ends before an object"),
    "cut": ('{"0": ["<a_1>"', "not JSON that we read, at character 6"),
    "cut after a comma": ('{"0": ["<a_1>"],', "expected an item id in quotes"),
    "two": ('{"0": ["<a_1>"]} {}', "something follows the object"),
    "nan": ('{"0": [NaN]}', "NaN is not JSON"),
    "deep": ('{"0": ' + "[" * 200_000, "nested too deeply"),
    "digits": ('{"0": [' + "9" * 5000 + "]}", "not JSON that we read, at character 6"),
    "endless": ('{"0": ["' + "x" * 3 * 2**20, "Unterminated string"),
    "number key": ("{0: [1]}", "expected an item id in quotes"),
    "not utf-8": (b'{"0": ["\xff"]}', "expected UTF-8"),
    "cut utf-8": (b'{"0": [1]} \xc3', "expected UTF-8"),
    "nothing in it": (" { } ", "no items"),
}


@pytest.mark.parametrize("name", BAD_INDEX)
def test_an_index_that_is_not_json_is_refused_whole(tmp_path: Path, name: str) -> None:
    content, message = BAD_INDEX[name]
    spec = import_spec(tmp_path / "x.index.json", content, max_rejects=10)
    with pytest.raises(InputError) as caught:
        run_import(spec)
    assert message in str(caught.value)
    assert "x.index.json" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.index.json"]


@pytest.mark.parametrize("item", ["5", "B05"])
@pytest.mark.parametrize("first", [False, True], ids=["copy last", "copy first"])
@pytest.mark.parametrize("copy", ["[1, 2]", '["<a_1>", "nothing"]', "[1]", "1", "[1, 9]"])
def test_every_copy_of_a_repeated_item_is_refused_with_faulty_ones_too(
    tmp_path: Path, copy: str, first: bool, item: str
) -> None:
    copies = [f'"{item}": {copy}', f'"{item}": [1, 2]']
    text = ", ".join([*copies[:: 1 if first else -1], '"6": [2, 2]'])
    spec = import_spec(tmp_path / "x.json", f"{{{text}}}", vocab_sizes=(3, 3), max_rejects=2)
    ads, report = imported(spec)
    assert ads == {6: (2, 2)}
    repeated = report.rejects["item_id: is repeated; no copy of it is imported"]
    assert repeated == (2 if copy == "[1, 2]" else 1)
    assert [(each["row"], each["item_id"]) for each in rejects_of(spec)] == [(1, item), (2, item)]


def test_tokens_outside_a_given_vocabulary_are_refused(tmp_path: Path) -> None:
    text = '{"5": ["<a_1>", "<b_9>"], "6": ["<a_2>", "<b_10>"]}'
    spec = import_spec(tmp_path / "x.json", text, max_rejects=1, vocab_sizes=(3, 10))
    ads, _ = imported(spec)
    assert ads == {5: (1, 9)}
    (listed,) = rejects_of(spec)
    assert (listed["item_id"], listed["value"]) == ("6", "10")
    assert listed["reason"] == "token at position 1 is outside the vocabulary of 10"


def test_a_token_that_only_tells_items_apart_can_be_cut_off(tmp_path: Path) -> None:
    """MiniOneRec appends one where items collide; ads may share a SID."""
    text = '{"0": ["<a_1>", "<b_2>", "<d_0>"], "1": ["<a_1>", "<b_2>"], "2": ["<a_1>"]}'
    spec = import_spec(tmp_path / "x.json", text, sid_length=2, max_rejects=1)
    ads, report = imported(spec)
    assert ads == {0: (1, 2), 1: (1, 2)}
    assert (report.sids, rejects_of(spec)[0]["value"]) == (1, "1 token")


BAD_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "sid space": ({"sid_space": ""}, "1 to 255 printable"),
    "vocabulary": ({"vocab_sizes": (256, 0)}, "each must be 1 to 65536"),
    "lengths": ({"vocab_sizes": (256, 256), "sid_length": 3}, "leave one option out"),
    "length": ({"sid_length": 17}, "1 to 16"),
    "ids": ({"ids": Path("ids.txt")}, "ids belong to a .npy"),
    "limit": ({"max_rejects": -1}, "give 0 or more"),
    "gone": ({"source": Path("gone.json")}, "no such file"),
    "ending": ({"source": Path("gone.txt")}, "must end in"),
    "no folder": ({"out": Path("no/such/sids.parquet")}, "no such folder"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_impossible_options_are_refused_before_the_work(tmp_path: Path, name: str) -> None:
    changes, message = BAD_SPECS[name]
    with pytest.raises(InputError) as caught:
        run_import(replace(import_spec(tmp_path / "x.json", LETTER), **changes))
    assert message in str(caught.value)


def test_a_table_there_is_only_replaced_when_asked_and_only_whole(tmp_path: Path) -> None:
    spec = import_spec(tmp_path / "x.json", LETTER)
    run_import(spec)
    before = spec.out.read_bytes()
    with pytest.raises(InputError, match="--force"):
        run_import(spec)
    with pytest.raises(RejectedAdsError):
        run_import(import_spec(spec.source, '{"0": []}', force=True))
    assert spec.out.read_bytes() == before
    assert spec.reject_file.exists()
    run_import(import_spec(spec.source, '{"0": ["<a_0>"]}', force=True))
    assert pq.read_table(spec.out)["sid"].to_pylist() == [[0]]
    assert not spec.reject_file.exists(), "a list of an import before would mislead"
