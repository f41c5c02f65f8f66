"""Published Semantic IDs become a table of SIDs; a file with an item that cannot is refused."""

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.importers.npy import BATCH_ITEMS
from grace.index.importers.sids import import_sids
from support.builds import silent
from support.strategies import examples

LETTER = """{"0": ["<a_93>", "<b_85>", "<c_227>", "<d_174>"],
 "1": ["<a_93>", "<b_85>", "<c_27>", "<d_0>"],
 "12100": ["<a_119>", "<b_123>", "<c_72>", "<d_189>"]}"""


def index_of(folder: Path, content: str | bytes, **changes: Any) -> ImportSpec:
    source = folder / "x.index.json"
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    return replace(ImportSpec(source, folder / "sids.parquet", "beauty-1"), **changes)


def array_of(folder: Path, codes: Any, **changes: Any) -> ImportSpec:
    np.save(folder / "codes.npy", codes)
    return replace(ImportSpec(folder / "codes.npy", folder / "sids.parquet", "s"), **changes)


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
    spec = array_of(tmp_path, [[1, 2, 0], [1, 2, 1]], vocab_sizes=(3, 3), force=True)
    assert "sid '3 tokens': the SID length is 2" in refusal(spec)
    assert imported(replace(spec, sid_length=2)) == {0: (1, 2), 1: (1, 2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sid_space": ""}, "1 to 255 printable"),
        ({"vocab_sizes": (256, 0)}, "each must be 1 to 65536"),
        ({"vocab_sizes": (256, 256), "sid_length": 3}, "leave one option out"),
        ({"sid_length": 17}, "1 to 16"),
        ({"ids": Path("ids.txt")}, "ids belong to a .npy"),
        ({"source": Path("gone.json")}, "no such file"),
        ({"source": Path("gone.jsonl")}, "must end in"),
        ({"out": Path("no/such/sids.parquet")}, "no such folder"),
        ({"out": Path()}, "is a folder; name a file"),
    ],
)
def test_impossible_options_are_refused_before_the_work(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        import_sids(replace(index_of(tmp_path, LETTER), **changes), silent)


def test_a_table_there_is_only_replaced_when_asked_and_only_whole(tmp_path: Path) -> None:
    spec = index_of(tmp_path, LETTER)
    imported(spec)
    assert "--force" in refusal(spec)
    refusal(index_of(tmp_path, '{"0": []}', force=True))
    assert imported(index_of(tmp_path, '{"0": ["<a_0>"]}', force=True)) == {0: (0,)}


def test_the_table_is_not_a_file_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("5\n")
    spec = array_of(tmp_path, [[1, 2]], ids=tmp_path / "ids.txt", force=True)
    (tmp_path / "linked").symlink_to(spec.source)
    (tmp_path / "also").hardlink_to(tmp_path / "ids.txt")
    for out in ("codes.npy", "ids.txt", "linked", "also"):
        fault = refusal(replace(spec, out=tmp_path / out))
        assert "is read, and would be the table; name another --out" in fault


def test_integers_of_every_type_and_layout_import_the_same(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 200, (63, 3))
    for dtype in ("<i8", "|u1", ">i4", "<u8"):
        for order in ("C", "F"):
            given = np.asarray(codes, dtype, order=order)
            ads = imported(array_of(tmp_path, given, force=True))
            assert ads == {row: tuple(sid) for row, sid in enumerate(codes.tolist())}


def test_items_over_several_batches_keep_their_ids(tmp_path: Path) -> None:
    count = BATCH_ITEMS + 111
    rng = np.random.default_rng(3)
    codes, ids = rng.integers(0, 65536, (count, 2)), rng.permutation(count * 5)[:count]
    np.save(tmp_path / "ids.npy", ids)
    ads = imported(array_of(tmp_path, codes, ids=tmp_path / "ids.npy"))
    assert ads == dict(zip(ids.tolist(), map(tuple, codes.tolist()), strict=True))


def with_ids(folder: Path, codes: Any, ids: npt.NDArray[Any] | bytes) -> ImportSpec:
    path = folder / ("ids.txt" if isinstance(ids, bytes) else "ids.npy")
    path.write_bytes(ids) if isinstance(ids, bytes) else np.save(path, ids)
    return array_of(folder, codes, ids=path, force=True)


def test_ids_may_be_lines_of_text_or_an_array_of_it(tmp_path: Path) -> None:
    lines = ([70, 5, 9], (b"70\n5\n9\n", b"70\r\n5\r\n9\r\n", b"70\n5\n9"))
    for ids, contents in (lines, (["B01", "é", "7"], [np.array(["B01", "é", "7"])])):
        for content in contents:
            sids = imported(with_ids(tmp_path, [[1], [2], [3]], content))
            assert sids == dict(zip(ids, [(1,), (2,), (3,)], strict=True))


BAD_IDS: dict[str, tuple[npt.NDArray[Any] | bytes, str]] = {
    "too few": (np.arange(2), "2 ids for 3 items"),
    "columns": (np.ones((3, 1), np.int64), "got [3, 1]"),
    "floats": (np.ones(3), "expected integers or text"),
    "above int64": (np.full(3, 2**63, np.uint64), "above 2^63 - 1"),
    "not utf-8": (b"1\n\xff\n3\n", "not lines of text in UTF-8"),
    "twice": (b"5\nB0\n5\n", "item 5 is in rows 1 and 3; give each item once"),
}


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BAD_IDS[name]
    assert message in refusal(with_ids(tmp_path, [[1, 2], [3, 4], [5, 6]], content))


BAD_CODES: dict[str, tuple[Any, str]] = {
    "negative": (np.array([[1, 2], [-1, 2]]), "row 2, item 1: sid '-1': token at position 0"),
    "huge": (np.array([[2**64 - 1, 0]], np.uint64), str(2**64 - 1)),
    "floats": (np.ones((3, 2)), "expected integers, got '<f8'"),
    "one axis": (np.arange(6), "got [6]"),
    "no items": (np.ones((0, 4), np.int64), "nothing to import"),
    "17 tokens": (np.ones((2, 17), np.int64), "1 to 16"),
    "times": (np.zeros((2, 2), "<M8[s]"), "expected integers"),
    "objects": (np.array([[1, [2]]], object), "Python objects in dtype"),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_an_array_that_is_no_codes_is_refused_by_name(tmp_path: Path, name: str) -> None:
    codes, message = BAD_CODES[name]
    assert re.search(rf"codes\.npy.*{re.escape(message)}", refusal(array_of(tmp_path, codes)))


class Burglar:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    broken_in = tmp_path / "broken-in"
    spec = array_of(tmp_path, np.array([Burglar(broken_in)], object))
    assert "Python objects in dtype" in refusal(spec)
    spec.source.write_bytes(pickle.dumps(Burglar(broken_in)))
    assert "not a .npy file" in refusal(spec)
    assert not broken_in.exists()


@pytest.mark.parametrize(
    ("descr", "shape"), [("()", "(5, 4)"), ("('<i8',)", "(5, 4)"), ("'<i8'", "(True, 20)")]
)
def test_a_header_that_is_no_numpy_header_is_refused(
    tmp_path: Path, descr: str, shape: str
) -> None:
    spec = array_of(tmp_path, np.ones((5, 4), np.int64))
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = spec.source.read_bytes()
    spec.source.write_bytes(content[:10] + header.encode() + content[128:])
    assert "codes.npy: not a .npy file" in refusal(spec)
    spec.source.write_bytes(content + content[128:])
    assert "codes.npy: has 448 bytes, its header says 288; write it again" in refusal(spec)


@examples(70)
@given(at=st.integers(0, 150), byte=st.integers(0, 255), kept=st.sampled_from([0, 7, 60, 150, 168]))
def test_a_changed_or_cut_file_is_refused_or_imports_numbers(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, kept: int
) -> None:
    spec = array_of(tmp_path_factory.mktemp("npy"), np.ones((5, 4), np.int16))
    damaged = bytearray(spec.source.read_bytes())
    assert len(damaged) == 168
    damaged[at] = byte
    spec.source.write_bytes(bytes(damaged[:kept]))
    try:
        assert imported(spec)
        assert kept == len(damaged)
    except InputError as error:
        assert "codes.npy" in str(error)
