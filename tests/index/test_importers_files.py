"""An import never destroys what it reads: files are compared by identity, not by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.importers import ImportSpec
from support.imports import run_import

ITEMS = '{"item_id": 5, "token_ids": [1, 2]}\n'


@pytest.fixture
def spec(tmp_path: Path) -> ImportSpec:
    (tmp_path / "items.jsonl").write_text(ITEMS)
    pq.write_table(pa.table({"ad_id": pa.array([5])}), tmp_path / "team.parquet")
    return ImportSpec(tmp_path / "items.jsonl", tmp_path / "ads.parquet", "s", force=True)


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
@pytest.mark.parametrize("read", ["source", "ads", "ids", "id_map"])
def test_the_table_is_not_a_file_that_is_read(
    spec: ImportSpec, read: str, spelled: Spelling
) -> None:
    folder = spec.source.parent
    np.save(folder / "codes.npy", [[1, 2]])
    (folder / "ids.txt").write_text("5\n")
    pq.write_table(
        pa.table({"item_id": pa.array(["a"]), "ad_id": pa.array([3])}), folder / "map.parquet"
    )
    spec = {
        "source": spec,
        "ads": replace(spec, ads=folder / "team.parquet"),
        "ids": replace(spec, source=folder / "codes.npy", ids=folder / "ids.txt"),
        "id_map": replace(spec, id_map=folder / "map.parquet"),
    }[read]
    fault = "would be the table and the id map" if read == "id_map" else "would be the table"
    assert_refused_and_untouched(replace(spec, out=spelled(getattr(spec, read))), fault)


def test_no_two_files_of_an_import_are_one(spec: ImportSpec) -> None:
    team, rejects = spec.source.with_name("team.parquet"), spec.reject_file
    for changes, message in (
        ({"id_map": roundabout(spec.out)}, "would be the table and the id map"),
        ({"ads": team, "id_map": team}, "is read, and would be the id map"),
        ({"id_map": rejects}, "would be the list of rejects and the id map"),
    ):
        assert_refused_and_untouched(replace(spec, **changes), message)  # type: ignore[arg-type]
    rejects.write_text(ITEMS)
    assert_refused_and_untouched(
        replace(spec, source=rejects), "is read, and would be the list of rejects"
    )


@pytest.mark.parametrize("name", ["out", "reject_file", "id_map"])
def test_a_folder_in_the_place_of_a_file_is_named(spec: ImportSpec, name: str) -> None:
    spec = replace(spec, id_map=spec.source.with_name("map.parquet"))
    folder = getattr(spec, name)
    folder.mkdir()
    with pytest.raises(InputError, match=f"{folder.name}: .* it is a folder; name a file"):
        run_import(spec)


def test_the_map_is_written_before_a_table_that_fails(spec: ImportSpec) -> None:
    """A number is given when the map has it: no table may have numbers that the map has not."""
    team, id_map = spec.source.with_name("team.parquet"), spec.source.with_name("map.parquet")
    with pytest.raises(InputError, match="none of its 1 ads has a SID"):
        run_import(replace(spec, ads=team, id_map=id_map, max_rejects=9))
    assert not spec.out.exists()
    assert pq.read_table(id_map).to_pylist() == [{"item_id": "5", "ad_id": 0}]
