"""The ids of a data folder: tables and people use texts, snapshots and the API numbers."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import count
from os import stat_result
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.rejects import brief
from grace.index.tables.cells import texts
from grace.index.tables.data_folder import DataFolder, read_data_folder
from grace.index.tables.item_numbers import IdMap, integer_id
from grace.index.tables.roles import NAME, SID, require_column
from grace.index.tables.rows import read_rows
from grace.index.tables.sid_table import open_sid_table, sid_table_at

_BATCH_ROWS = 1 << 18
_LOOK_SECONDS = 1.0  # between two looks at files, if no id is missing
_SIDS = pa.list_(pa.int64())
_Find: TypeAlias = Callable[[Any], Any]  # returns what belongs to a key; None for an unknown key


class DataIds:
    """The ids of ads and entities in both directions, and the SIDs of items, for any thread.

    A level is "ad" or an entity. Without an id map, its ids are integers, which are the numbers.
    Maps and SIDs stay in memory after their first use. They are read again if their files have
    changed. While that takes long or fails, ids that are known keep their meaning.
    """

    def __init__(self, folder: str | Path) -> None:
        data = read_data_folder(Path(folder))
        maps = {**({} if data.id_map is None else {"ad": data.id_map}), **data.entity_ids}
        self._maps = {each: _Lookup([path], partial(_map, path)) for each, path in maps.items()}
        sids = data.ads.files if data.sids is None else [sid_table_at(data.sids)]
        self._sids = _Lookup(sids, partial(_sids, data))

    @property
    def mapped(self) -> Set[str]:
        return self._maps.keys()

    def number(self, level: str, text: str) -> int:
        """Return the number of an id; raise an InputError for one that has none."""
        number: int | None = self._maps.get(level, integer_id)(text)
        if number is None:
            fault = "not in its id map; name an id of a table that was built"
            if level not in self._maps:
                mapped = ", ".join(sorted(self._maps)) or "nothing"
                fault = f"ids are 0 to 2^63 - 1; tables.yaml maps {mapped}; check {level!r}"
            raise InputError(f"{level} {brief(text)!r}: {fault}")
        return number

    def names(self, level: str, numbers: Iterable[int]) -> list[str | None]:
        """Return the ids of numbers, None for one that the level's id map does not have."""
        return [*map(self._maps.get(level, str), numbers)]

    def sid(self, item_id: str) -> tuple[int, ...] | None:
        found: list[int] | None = self._sids(item_id)
        return None if found is None else tuple(found)


class _Lookup:
    """Finds keys in files. It reads files that have changed again, on one thread at a time.

    It looks at the files if a key is not there, and every second. Another thread waits for that
    only if its key is not there.
    """

    def __init__(self, files: Sequence[str | Path], read: Callable[[], _Find]) -> None:
        self._files = [*map(Path, files)]
        self._read = read
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._stamps: list[tuple[int, int, int]] | None = None
        self._find: _Find = lambda _: None

    def __call__(self, key: Any) -> Any:
        found = self._find(key)
        if found is not None and monotonic() < self._look_at:
            return found
        if not self._lock.acquire(blocking=found is None):
            return found  # another thread looks
        try:
            stamps = [(each.st_ino, each.st_mtime_ns, each.st_size) for each in self._stats()]
            if stamps != self._stamps:
                self._find, self._stamps = self._read(), stamps
        except (InputError, OSError):  # such as that of a file which is being written
            if found is None:
                raise
        finally:
            self._look_at = monotonic() + _LOOK_SECONDS
            self._lock.release()
        return self._find(key)

    def _stats(self) -> Iterator[stat_result]:
        """Yield what is known of the files, and of those in folders. A URL never changes."""
        for path in self._files:
            for file in (path, *(sorted(path.iterdir()) if path.is_dir() else ())):
                with suppress(FileNotFoundError):
                    yield file.stat()


def _map(path: Path) -> _Find:
    """Read an id map: texts find numbers, and numbers texts."""
    numbers = IdMap.read_existing(path).items()
    both: dict[int | str, int | str] = {number: text for text, number in numbers}
    both.update(numbers)
    return both.get


def _sids(data: DataFolder) -> _Find:
    """Read `sids` of tables.yaml, or else the ads' column of SIDs."""
    if data.sids is None:
        tables, item, sid = data.ads.tables(), data.ads.theirs("ad_id"), data.ads.theirs("sid")
    else:
        tables, item, sid = [open_sid_table(data.sids)], "item_id", "sid"
    row_of: dict[str | None, int] = {}
    parts: list[pa.Array] = []
    rows = count()
    for table in tables:
        for ours, role, theirs in (("item_id", NAME, item), ("sid", SID, sid)):
            require_column(role, table, ours, theirs, ", of the SIDs of items,")
        for batch in read_rows(table, {"item_id": item, "sid": sid}, "item_id", _BATCH_ROWS):
            row_of.update(zip(texts(batch.given("item_id")), rows, strict=False))
            parts.append(batch.lists("sid").array().cast(_SIDS))
    sids = pa.chunked_array(parts, _SIDS)
    return lambda item_id: sids[row_of[item_id]].as_py() if item_id in row_of else None
