"""An import never destroys what it reads: its files are told apart by what they are, not named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.importers import ImportSpec, import_sids

ITEMS = '{"item_id": 5, "token_ids": [1, 2]}\n'


def silent(step: str, done: int, total: int) -> None:
    pass


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
        import_sids(spec, silent)
    assert message in str(caught.value)
    assert "name another --out" in str(caught.value)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


@spellings
def test_the_table_is_not_the_ads_table_that_is_read(spec: ImportSpec, spelled: Spelling) -> None:
    team = spec.source.with_name("team.parquet")
    asked = replace(spec, ads=team, out=spelled(team))
    assert_refused_and_untouched(asked, "is read, and would be the table")


@spellings
def test_the_table_is_not_the_source(spec: ImportSpec, spelled: Spelling) -> None:
    asked = replace(spec, out=spelled(spec.source))
    assert_refused_and_untouched(asked, "is read, and would be the table")


def test_the_table_is_not_the_file_of_ids(spec: ImportSpec) -> None:
    codes, ids = spec.source.with_name("codes.npy"), spec.source.with_name("ids.txt")
    np.save(codes, [[1, 2]])
    ids.write_text("5\n")
    asked = replace(spec, source=codes, ids=ids, out=ids)
    assert_refused_and_untouched(asked, "is read, and would be the table")


@spellings
def test_the_table_is_not_the_id_map(spec: ImportSpec, spelled: Spelling) -> None:
    id_map = spec.source.with_name("map.parquet")
    pq.write_table(pa.table({"item_id": pa.array(["a"]), "ad_id": pa.array([3])}), id_map)
    asked = replace(spec, id_map=id_map, out=spelled(id_map))
    assert_refused_and_untouched(asked, "would be the table and the id map")


def test_the_table_and_an_id_map_that_is_not_there_yet_are_told_apart(spec: ImportSpec) -> None:
    asked = replace(spec, id_map=roundabout(spec.out))
    assert_refused_and_untouched(asked, "would be the table and the id map")


def test_the_id_map_is_not_what_is_read(spec: ImportSpec) -> None:
    team = spec.source.with_name("team.parquet")
    asked = replace(spec, ads=team, id_map=team)
    assert_refused_and_untouched(asked, "is read, and would be the id map")


def test_the_list_of_rejects_is_not_the_source(spec: ImportSpec) -> None:
    source = spec.source.with_name("ads.rejects.jsonl")
    source.write_text(ITEMS)
    asked = replace(spec, source=source)
    assert_refused_and_untouched(asked, "is read, and would be the list of rejects")


def test_the_list_of_rejects_is_not_the_id_map_or_the_table(spec: ImportSpec) -> None:
    asked = replace(spec, id_map=spec.reject_file)
    assert_refused_and_untouched(asked, "would be the list of rejects and the id map")


@pytest.mark.parametrize("name", ["out", "reject_file", "id_map"])
def test_a_folder_in_the_place_of_a_file_is_named(spec: ImportSpec, name: str) -> None:
    spec = replace(spec, id_map=spec.source.with_name("map.parquet"))
    folder = getattr(spec, name)
    folder.mkdir()
    with pytest.raises(InputError, match=f"{folder.name}: .* it is a folder; name a file"):
        import_sids(spec, silent)


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_without_a_name_is_refused_too(spec: ImportSpec, name: str) -> None:
    with pytest.raises(InputError, match="the table cannot be written there, it is a folder"):
        import_sids(replace(spec, out=Path(name)), silent)


def test_the_map_is_written_before_a_table_that_fails(spec: ImportSpec) -> None:
    """A number is given when the map has it: no table may have numbers that the map has not."""
    team, id_map = spec.source.with_name("team.parquet"), spec.source.with_name("map.parquet")
    with pytest.raises(InputError, match="none of its 1 ads has a SID"):
        import_sids(replace(spec, ads=team, id_map=id_map, max_rejects=9), silent)
    assert not spec.out.exists()
    assert pq.read_table(id_map).to_pylist() == [{"item_id": "5", "ad_id": 0}]
