"""The ids of a data folder: tables and people have texts, snapshots and the API have numbers."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.rejects import brief
from grace.index.tables.addresses import Format, ending_format, within
from grace.index.tables.cells import integer_lists, split_cells, texts
from grace.index.tables.data_folder import SIDS_FILE, DataFolder, read_data_folder
from grace.index.tables.item_numbers import IdMap, IntegerIds
from grace.index.tables.table_file import TableFile, open_table

_BATCH_ROWS = 1 << 18
_INTEGERS = IntegerIds()
_SIDS = pa.list_(pa.int64())
_Value = TypeVar("_Value")
_Found = TypeVar("_Found")


class DataIds:
    """The ids of ads and entities in both directions, and the SIDs of items, for any thread.

    A level is "ad" or an entity. Without an id map, its ids are integers: their own numbers. The
    maps are in memory; one that has changed on disk is read again when it lacks an id.
    """

    def __init__(self, folder: str | Path) -> None:
        self._data: DataFolder = read_data_folder(Path(folder))
        maps = {} if self._data.id_map is None else {"ad": self._data.id_map}
        self._maps = {
            level: _Renewed([path], partial(_Names, path))
            for level, path in {**maps, **self._data.entity_ids}.items()
        }

    @property
    def mapped(self) -> tuple[str, ...]:
        """The levels that have an id map."""
        return tuple(self._maps)

    def number(self, level: str, text: str) -> int:
        """Return the number of an id; raise an InputError for one that has none."""
        maps = self._maps.get(level)
        number = _INTEGERS.find(text) if maps is None else maps.find(lambda ids: ids.find(text))
        if number is not None:
            return number
        fault, remedy = "not an integer from 0 to 2^63 - 1", "name its id map in tables.yaml"
        if maps is not None:
            fault, remedy = f"not in {maps.files[0]}", "name one of a table that was built"
        raise InputError(f"{level} {brief(text)!r}: {fault}; {remedy}")

    def names(self, level: str, numbers: Sequence[int]) -> list[str | None]:
        """Return the ids of numbers, None for one that the level's id map does not have."""
        maps = self._maps.get(level)
        if maps is None:
            return [*map(str, numbers)]
        known = maps.value
        found = [*map(known.of_number.get, numbers)]
        if None in found and (newer := maps.newer_than(known)):
            found = [*map(newer.of_number.get, numbers)]
        return found

    def sid(self, item_id: str) -> tuple[int, ...] | None:
        """Return the SID of an item by its text in the table, None for an item without one."""
        return self._sids.find(lambda sids: sids.get(item_id))

    @cached_property
    def _sids(self) -> "_Renewed[_Sids]":
        """The SIDs of `sids` in tables.yaml, or else of the ads' column."""
        data = self._data
        if data.sids is None:
            item, sid = data.ads.theirs("ad_id"), data.ads.theirs("sid")
            return _Renewed(data.ads.files, lambda: _Sids(data.ads.tables(), item, sid))
        table = data.sids if ending_format(data.sids) else within(data.sids, SIDS_FILE)
        return _Renewed([table], lambda: _Sids([open_table(table)], "item_id", "sid"))


class _Renewed(Generic[_Value]):
    """A value from local files or URLs, which is read again after a local file has changed."""

    def __init__(self, files: Sequence[str | Path], read: Callable[[], _Value]) -> None:
        self.files = files
        self._read = read
        self._stamps = self._stamp()
        self.value = read()

    def newer_than(self, value: _Value) -> _Value | None:
        stamps = self._stamp()
        if stamps != self._stamps:
            self.value = self._read()
            self._stamps = stamps
        return None if self.value is value else self.value

    def find(self, look: Callable[[_Value], _Found | None]) -> _Found | None:
        """Look into the value, and into a newer one if there is nothing."""
        value = self.value
        found = look(value)
        if found is None and (newer := self.newer_than(value)) is not None:
            return look(newer)
        return found

    def _stamp(self) -> list[tuple[int, ...]]:
        found = (path.stat() for path in map(Path, self.files) if path.exists())
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]


class _Names:
    """An id map, also from numbers to names."""

    def __init__(self, path: Path) -> None:
        self._known = IdMap.read(path)
        self.find = self._known.find

    @cached_property
    def of_number(self) -> dict[int, str]:
        return {number: text for text, number in self._known.items()}


class _Sids:
    """The SIDs of a table, by item."""

    def __init__(self, tables: Sequence[TableFile], item: str, sid: str) -> None:
        self._rows: dict[str | None, int] = {}
        parts: list[pa.Array] = []
        rows = 0
        for table in tables:
            for name in (item, sid):
                if name not in table.schema.names:
                    raise InputError(
                        f"{table.address}: column {name!r} is missing, so its items have no SIDs; "
                        "name the table of SIDs as `sids` in tables.yaml"
                    )
            for batch in table.batches([item, sid], _BATCH_ROWS):
                for row, text in enumerate(texts(batch.column(item)), rows):
                    self._rows[text] = row
                rows += batch.num_rows
                sids = batch.column(sid)
                if table.format is Format.CSV:
                    sids, _ = integer_lists(split_cells(sids, table.list_separator))
                parts.append(sids.cast(_SIDS))
        self._sids = pa.chunked_array(parts, _SIDS)

    def get(self, item_id: str) -> tuple[int, ...] | None:
        row = self._rows.get(item_id)
        found = None if row is None else self._sids[row].as_py()
        return None if found is None else tuple(found)
