"""An import never destroys what it reads: files are compared by identity, not by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import InputError
from grace.index.importers import ImportSpec
from support.imports import run_import

ITEMS = '{"item_id": 5, "token_ids": [1, 2]}\n'


@pytest.fixture
def spec(tmp_path: Path) -> ImportSpec:
    (tmp_path / "items.jsonl").write_text(ITEMS)
    return ImportSpec(tmp_path / "items.jsonl", tmp_path / "sids.parquet", "s", force=True)


def linked(path: Path) -> Path:
    link = path.with_name("linked.parquet")
    link.symlink_to(path)
    return link


def hard_linked(path: Path) -> Path:
    link = path.with_name("linked.parquet")
    link.hardlink_to(path)
    return link


def roundabout(path: Path) -> Path:
    (path.parent / "sub").mkdir()
    return path.parent / "sub" / ".." / path.name


Spelling = Callable[[Path], Path]
spellings = pytest.mark.parametrize(
    "spelled", [Path, linked, hard_linked, roundabout], ids=lambda spelling: spelling.__name__
)


def assert_refused_and_untouched(spec: ImportSpec, message: str) -> None:
    folder = spec.source.parent
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError) as caught:
        run_import(spec)
    assert message in str(caught.value)
    assert "name another --out" in str(caught.value)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


@spellings
@pytest.mark.parametrize("read", ["source", "ids"])
def test_the_table_is_not_a_file_that_is_read(
    spec: ImportSpec, read: str, spelled: Spelling
) -> None:
    folder = spec.source.parent
    np.save(folder / "codes.npy", [[1, 2]])
    (folder / "ids.txt").write_text("5\n")
    if read == "ids":
        spec = replace(spec, source=folder / "codes.npy", ids=folder / "ids.txt")
    out = spelled(getattr(spec, read))
    assert_refused_and_untouched(replace(spec, out=out), "is read, and would be the table")


def test_no_two_files_of_an_import_are_one(spec: ImportSpec) -> None:
    spec.reject_file.write_text(ITEMS)
    assert_refused_and_untouched(
        replace(spec, source=spec.reject_file), "is read, and would be the list of rejects"
    )
    spec.out.write_text("")
    spec.reject_file.unlink()
    spec.reject_file.symlink_to(spec.out)
    assert_refused_and_untouched(spec, "would be the table and the list of rejects")


@pytest.mark.parametrize("name", ["out", "reject_file"])
def test_a_folder_in_the_place_of_a_file_is_named(spec: ImportSpec, name: str) -> None:
    folder = getattr(spec, name)
    folder.mkdir()
    with pytest.raises(InputError, match=f"{folder.name}: .* it is a folder; name a file"):
        run_import(spec)
