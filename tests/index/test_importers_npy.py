"""Arrays of codes become a table of SIDs; pickles and damaged headers do not."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.importers import ImportSpec
from grace.index.importers.items import BATCH_ITEMS
from support.imports import imported, run_import
from support.strategies import examples


def spec_of(folder: Path, codes: Any, **changes: Any) -> ImportSpec:
    np.save(folder / "codes.npy", codes)
    return replace(ImportSpec(folder / "codes.npy", folder / "sids.parquet", "s"), **changes)


DTYPES = ["<i8", "<u2", "|u1", ">i4", "<u8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_integers_of_every_type_and_layout_import_the_same(
    tmp_path: Path, dtype: str, order: Any
) -> None:
    codes = np.random.default_rng(1).integers(0, 200, (63, 3))
    ads, _ = imported(spec_of(tmp_path, np.asarray(codes, dtype, order=order)))
    assert ads == {row: tuple(sid) for row, sid in enumerate(codes.tolist())}


def test_items_over_several_batches_keep_their_ids(tmp_path: Path) -> None:
    count = BATCH_ITEMS + 111
    rng = np.random.default_rng(3)
    codes, ids = rng.integers(0, 65536, (count, 2)), rng.permutation(count * 5)[:count]
    np.save(tmp_path / "ids.npy", ids)
    ads, _ = imported(spec_of(tmp_path, codes, ids=tmp_path / "ids.npy"))
    assert ads == dict(zip(ids.tolist(), map(tuple, codes.tolist()), strict=True))


IDS: dict[str, tuple[bytes | npt.NDArray[Any], list[int | str]]] = {
    "lines": (b"70\n5\n9\n", [70, 5, 9]),
    "lines that end in CRLF": (b"70\r\n5\r\n9\r\n", [70, 5, 9]),
    "no last line end": (b"70\n5\n9", [70, 5, 9]),
    "an array of texts": (np.array(["B01", "é", "7"]), ["B01", "é", "7"]),
}


def write_ids(folder: Path, content: npt.NDArray[Any] | bytes) -> Path:
    path = folder / ("ids.txt" if isinstance(content, bytes) else "ids.npy")
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    return path


@pytest.mark.parametrize("name", IDS)
def test_ids_may_be_lines_of_text_or_an_array_of_it(tmp_path: Path, name: str) -> None:
    content, ids = IDS[name]
    spec = spec_of(tmp_path, [[1], [2], [3]], ids=write_ids(tmp_path, content))
    assert imported(spec)[0] == dict(zip(ids, [(1,), (2,), (3,)], strict=True))


def test_codes_out_of_range_are_refused_one_by_one(tmp_path: Path) -> None:
    codes = np.array([[1, 2], [-1, 2], [3, 65536], [3, 4]])
    assert imported(spec_of(tmp_path, codes, max_rejects=2))[0] == {0: (1, 2), 3: (3, 4)}
    huge = np.array([[2**64 - 1, 0], [1, 1]], np.uint64)
    spec = spec_of(tmp_path, huge, max_rejects=1, force=True)
    assert imported(spec)[0] == {1: (1, 1)}
    assert str(2**64 - 1) in spec.reject_file.read_text()


BAD_CODES: dict[str, tuple[Any, str]] = {
    "floats": (np.ones((3, 2)), "expected integers, got '<f8'"),
    "flags": (np.ones((3, 2), np.bool_), "expected integers"),
    "one axis": (np.arange(6), "got [6]"),
    "three axes": (np.ones((2, 2, 2), np.int64), "got [2, 2, 2]"),
    "no items": (np.ones((0, 4), np.int64), "nothing to import"),
    "no tokens": (np.ones((4, 0), np.int64), "nothing to import"),
    "17 tokens": (np.ones((2, 17), np.int64), "1 to 16"),
    "fields": (np.zeros(3, [("a", "<i4"), ("b", "<i4")]), "expected integers"),
    "times": (np.zeros((2, 2), "<M8[s]"), "expected integers"),
    "objects": (np.array([[1, [2]]], object), "Python objects in dtype"),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_an_array_that_is_no_codes_is_refused_by_name(tmp_path: Path, name: str) -> None:
    codes, message = BAD_CODES[name]
    with pytest.raises(InputError, match=rf"codes\.npy: .*{re.escape(message)}"):
        run_import(spec_of(tmp_path, codes))


def test_sids_longer_than_the_vocabulary_are_refused_unless_they_are_to_be_cut(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, [[1, 2, 0], [1, 2, 1]], vocab_sizes=(3, 3))
    with pytest.raises(InputError, match=r"3 tokens an item, the SID length is 2; .*--sid-length"):
        run_import(spec)
    assert imported(replace(spec, sid_length=2))[0] == {0: (1, 2), 1: (1, 2)}


class Burglar:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    broken_in = tmp_path / "broken-in"
    spec = spec_of(tmp_path, np.array([Burglar(broken_in)], object))
    with pytest.raises(InputError, match="Python objects in dtype"):
        run_import(spec)
    spec.source.write_bytes(pickle.dumps(Burglar(broken_in)))
    with pytest.raises(InputError, match=r"not a \.npy file"):
        run_import(spec)
    assert not broken_in.exists()


BAD_IDS: dict[str, tuple[npt.NDArray[Any] | bytes, str]] = {
    "too few": (np.arange(2), "2 ids for 3 items"),
    "columns": (np.ones((3, 1), np.int64), "got [3, 1]"),
    "floats": (np.ones(3), "expected integers or text"),
    "above int64": (np.full(3, 2**63, np.uint64), "above 2^63 - 1"),
    "too few lines": (b"1\n2\n", "2 ids for 3 items"),
    "too many lines": (b"1\n2\n3\n4\n", "4 ids for 3 items"),
    "not utf-8": (b"1\n\xff\n3\n", "not lines of text in UTF-8"),
}


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BAD_IDS[name]
    spec = spec_of(tmp_path, [[1, 2], [3, 4], [5, 6]], ids=write_ids(tmp_path, content))
    with pytest.raises(InputError, match=re.escape(message)):
        run_import(spec)


@pytest.mark.parametrize(
    ("descr", "shape"), [("()", "(5, 4)"), ("('<i8',)", "(5, 4)"), ("'<i8'", "(True, 20)")]
)
def test_a_header_that_is_no_numpy_header_is_refused(
    tmp_path: Path, descr: str, shape: str
) -> None:
    spec = spec_of(tmp_path, np.ones((5, 4), np.int64))
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = spec.source.read_bytes()
    spec.source.write_bytes(content[:10] + header.encode() + content[128:])
    with pytest.raises(InputError, match=r"codes\.npy: not a \.npy file"):
        run_import(spec)


@examples(70)
@given(at=st.integers(0, 150), byte=st.integers(0, 255), kept=st.sampled_from([0, 7, 60, 150, 168]))
def test_a_changed_or_cut_file_is_refused_or_imports_numbers(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, kept: int
) -> None:
    spec = spec_of(tmp_path_factory.mktemp("npy"), np.ones((5, 4), np.int16), max_rejects=5)
    damaged = bytearray(spec.source.read_bytes())
    assert len(damaged) == 168
    damaged[at] = byte
    spec.source.write_bytes(bytes(damaged[:kept]))
    try:
        assert imported(spec)[0]
        assert kept == len(damaged)
    except InputError as error:
        assert "codes.npy" in str(error)
