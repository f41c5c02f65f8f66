"""Arrays in files: written in portions, read in blocks, and let go of as they are used."""

from pathlib import Path

import numpy as np
import pytest

from grace.index.builder.sharding.output_folder import ArrayWriter, OutputFolder
from grace.index.storage.array_file import write_array
from grace.index.storage.folder import open_root
from grace.index.storage.mapped import MappedArray, blocks, map_array


@pytest.mark.parametrize("row", [(), (3,)], ids=["numbers", "rows"])
@pytest.mark.parametrize("portions", [[], [0], [1], [63, 0, 111]], ids=str)
def test_what_is_appended_comes_back_as_one_array(
    tmp_path: Path, row: tuple[int, ...], portions: list[int]
) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(1 << 30, size=(size, *row)).astype(np.int32) for size in portions]
    with OutputFolder(tmp_path / "out") as out:
        writer = out.array("ids", "<i4", row)
        for part in parts:
            writer.append(part)
        found = writer.finish()
    assert found.dtype == np.int32
    assert np.array_equal(found, np.concatenate([np.empty((0, *row), np.int32), *parts]))


def test_rows_of_another_width_are_our_mistake(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "rows", "<i4", (3,))
    with pytest.raises(ValueError, match="rows must be"):
        writer.append(np.zeros((5, 2), np.int32))
    writer.close()


@pytest.mark.parametrize("shape", [(0,), (1,), (63, 7), (0, 4)], ids=str)
def test_a_stored_array_reads_as_the_one_that_was_written(
    tmp_path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.index.storage.mapped.BLOCK_BYTES", 100)
    array = np.random.default_rng(2).integers(1 << 40, size=shape)
    with open_root(tmp_path) as folder:
        entry = write_array("rows.npy", array, folder)
    stored = map_array(
        tmp_path / "rows.npy", entry.dtype, entry.shape, entry.bytes - entry.data_bytes
    )
    assert np.array_equal(stored[:], array)
    assert np.array_equal(stored[11:40], array[11:40])
    parts = list(blocks(stored))
    assert np.array_equal(np.concatenate([array[:0], *parts]), array)
    assert all(part.nbytes <= 100 for part in parts)


def test_a_mapped_array_is_the_same_after_its_pages_were_released(tmp_path: Path) -> None:
    array = np.arange(100_003, dtype=np.int64)
    (tmp_path / "numbers").write_bytes(array.tobytes())
    mapped = MappedArray(tmp_path / "numbers", "<i8", "r", shape=array.shape)
    for begin, size in ((0, 8), (5, 123_456), (799_000, 1 << 20), (1 << 30, 8)):
        mapped.release(begin, size)
        assert np.array_equal(mapped, array)
    assert sum(int(block.sum()) for block in blocks(mapped)) == array.sum()
