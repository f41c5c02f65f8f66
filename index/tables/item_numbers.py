"""Number items, since a snapshot knows ads by number: by their own numbers, or by an id map.

An id map is a Parquet file of `item_id` (text) and `ad_id` (int64). A number, once given, stays:
a build reads the existing map, adds new items, and writes it back.
"""

import fcntl
import os
import re
from collections.abc import ItemsView, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from grace.configs.arrays import Int64
from grace.configs.errors import InputError
from grace.configs.regular_files import closing, sync
from grace.index.tables.addresses import UNREADABLE, first_line

LONGEST_ID = 1024  # characters
_MOST = (1 << 63) - 1
_PLAIN = re.compile(r"0|[1-9][0-9]{0,18}")  # one spelling for each number


def integer_id(text: str) -> int | None:
    """Return the id that a plain decimal number from 0 to 2^63 - 1 stands for; else None."""
    return int(text) if _PLAIN.fullmatch(text) and int(text) <= _MOST else None


class IdMap:
    """Items of any name. New ones get the next numbers, in order of arrival."""

    def __init__(self, known: dict[str, int] | None = None) -> None:
        self._numbers: dict[str, int] = known or {}
        self.largest = max(self._numbers.values(), default=-1)

    def __len__(self) -> int:
        return len(self._numbers)

    def digest(self, largest: int) -> str:
        """Return the XXH3 of the ids with numbers up to the largest one, and of these numbers."""
        numbers = np.fromiter(self._numbers.values(), np.int64, len(self))
        order = np.argsort(numbers, kind="stable")
        order = order[numbers[order] <= largest]
        texts = "\0".join(np.array([*self._numbers], object)[order])
        return xxhash.xxh3_64_hexdigest(numbers[order].tobytes() + texts.encode())

    def add(self, texts: Iterable[str]) -> None:
        """Number the new ones among these ids, but for texts that name no item."""
        for text in texts:
            if text not in self._numbers and no_name(text) is None:
                self.largest += 1
                self._numbers[text] = self.largest

    def names(self, numbers: Int64) -> list[str]:
        wanted = set(numbers.tolist())
        name_of = {number: text for text, number in self.items() if number in wanted}
        return [name_of[number] for number in numbers.tolist()]

    def items(self) -> ItemsView[str, int]:
        return self._numbers.items()

    def find(self, text: str, unknown: int) -> int:
        return self._numbers.get(text, unknown)

    @staticmethod
    def read(path: Path) -> "IdMap":
        """Return the map that is on disk; an empty one if there is no file."""
        return IdMap.read_existing(path) if path.exists() else IdMap()

    @staticmethod
    def read_existing(path: Path) -> "IdMap":
        try:
            with pq.ParquetFile(path) as file:  # opened once: a build may replace it meanwhile
                table = file.read()
        except FileNotFoundError:
            fault = "no such file; restore the id map, or let `grace build` make it"
            raise InputError(f"{path}: {fault}") from None
        except UNREADABLE as error:
            raise InputError(f"{path}: not a readable id map: {first_line(error)}") from None
        expected = {"item_id": pa.string(), "ad_id": pa.int64()}
        if dict(zip(table.schema.names, table.schema.types, strict=True)) != expected:
            raise InputError(
                f"{path}: not an id map: its columns must be item_id string, ad_id int64"
            )
        texts, numbers = table["item_id"].to_pylist(), table["ad_id"].to_pylist()
        if None in texts or None in numbers or not all(0 <= n < _MOST for n in numbers):
            raise InputError(f"{path}: not an id map: it holds a null, or an ad_id out of range")
        if len(set(texts)) < len(texts) or len(set(numbers)) < len(numbers):
            raise InputError(f"{path}: not an id map: an item or a number is in it twice")
        return IdMap(dict(zip(texts, numbers, strict=True)))

    def write(self, path: Path) -> None:
        columns = {
            "item_id": pa.array(self._numbers.keys(), pa.string()),
            "ad_id": pa.array(self._numbers.values(), pa.int64()),
        }
        # The file, not a link to it: others who name the file must see what was added.
        with replacing(path.resolve()) as unfinished:
            pq.write_table(pa.table(columns), unfinished)


@contextmanager
def map_lock(path: Path) -> Iterator[None]:
    """Lock the map until it is written: two builds at once would give the same numbers."""
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(path.with_name(f".{path.name}.lock"), flags, 0o666)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be locked: {error.strerror}; make its folder writable"
        ) from None
    with closing(lock):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def no_name(text: str) -> str | None:
    """Return why a text names no item; None if it does."""
    if not text:
        return "is empty"
    if len(text) > LONGEST_ID:
        return f"is longer than {LONGEST_ID} characters"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "is not text: it holds half of a surrogate pair"
    return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to. It becomes `path` at the end, or is removed after an error.

    The new file survives a power cut, as a snapshot does that uses its numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        sync(unfinished)
        unfinished.replace(path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
