"""Messages that C++ reads by the table of fields: what is in them, and their faults in words.

native/include/grace/wire_fields.h has the table, with a row for each field and each fault.
"""

from collections.abc import Callable, Iterable, Sequence
from ctypes import CDLL, addressof, c_char_p, c_int64
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from grace.configs.arrays import Int64
from grace.configs.errors import RequestError
from grace.native.loader import declare, load_library, load_library_with_lock

BatchReport = tuple[tuple[RequestError | None, ...], tuple[tuple[str, ...], ...]]
"""The fault of each request, and its names that are not declared, sorted."""

_FAULT_NUMBERS = 9
_UNKNOWN_NUMBERS = 5
_UNKNOWN_ROOM = 64
"""Names of a batch that are not declared; if there are more, C++ reads the batch again."""

_NONE = np.empty(0, np.int64)
_NOT_FINITE = {0: "nan", 1: "inf", -1: "-inf"}


@dataclass(frozen=True, slots=True)
class _Table:
    settings: tuple[str, ...]  # the names of limits; the first one is no limit
    fields: tuple[tuple[str, ...], ...]  # (path, unit, setting)
    # (name, whether the log may have the names in the path, words)
    faults: tuple[tuple[str, ...], ...]
    numbers: dict[str, int]  # of fields, by path

    @staticmethod
    @cache
    def get() -> "_Table":
        read = load_library_with_lock().grace_wire_table
        read.restype = c_char_p
        settings, *rows = read().decode().removesuffix("\n").split("\n\n")
        fields, faults = (tuple(tuple(row.split("\t")) for row in r.split("\n")) for r in rows)
        numbers: dict[str, int] = {}
        for number, (path, *_) in enumerate(fields):
            numbers.setdefault(path, number)  # a total comes after the field whose path it has
        return _Table(tuple(settings.split("\n")), fields, faults, numbers)


class Head:
    """A message whose bytes C++ has checked: its numbers and texts, and what is in its lists."""

    def __init__(self, reader: "WireReader", message: bytes, numbers: Any) -> None:
        self._reader, self._message, self._numbers = reader, message, numbers
        self._fields = _Table.get().numbers

    def text(self, path: str) -> str:
        begin, size = self._pair(path)
        return self._message[begin : begin + size].decode()

    def number(self, path: str) -> int:
        """Return a number, the length of a list, or the number of a map's names."""
        return int(self._pair(path)[0])

    def integers_in(self, path: str) -> int:
        """Return how many integers the lists of a map have together."""
        return int(self._pair(path)[1])

    def integers(self, path: str) -> Int64:
        count = self.number(path)
        if not count:
            return _NONE
        found = np.empty(count, np.int64)
        self._reader.integers(*self._place(path), count, found)
        return found

    def texts(self, path: str) -> tuple[bytes, ...]:
        """Return the texts of a list, as they are in the message."""
        count, message = self.number(path), self._message
        spans = np.empty((count, 2), np.int64)
        if count:
            self._reader.texts(*self._place(path), count, spans)
        return tuple(message[begin : begin + size] for begin, size in spans.tolist())

    def lists(self, path: str) -> dict[str, Int64]:
        """Return the list of each name of a map, in the order of names."""
        names, count = self._pair(path)
        if not names:
            return {}
        found = np.empty(count, np.int64)
        lists, end = {}, 0
        for name, length in self._names(path, found):
            lists[name] = found[end : end + length]
            end += length
        return lists

    def numbers(self, path: str) -> dict[str, int]:
        """Return the number of each name of a map."""
        return dict(self._names(path, _NONE)) if self.number(path) else {}

    def joined(self, path: str) -> bytes:
        """Return a message within this one, which may come in several parts."""
        found = np.empty(self.number(path), np.uint8)
        self._reader.opaque(*self._place(path), len(found), found)
        return found.tobytes()

    def _names(self, path: str, found: Int64) -> list[tuple[str, int]]:
        entries, count = self._pair(path)
        names, message = np.empty((entries, 3), np.int64), self._message
        self._reader.map(*self._place(path), entries, count, names, found)
        return [(message[at : at + size].decode(), each) for at, size, each in names.tolist()]

    def _pair(self, path: str) -> tuple[int, int]:
        at = 2 * self._fields[path]
        return self._numbers[at], self._numbers[at + 1]

    def _place(self, path: str) -> tuple[bytes, int, int]:
        return self._message, len(self._message), self._fields[path]


class WireReader:
    """Reads messages with or without the interpreter's lock."""

    def __init__(self, library: Callable[[], CDLL]) -> None:
        def of_message(name: str, more: str) -> Callable[..., None]:
            return declare(f"{name}(text, int64, int64, {more})", library=library)

        self._read = of_message("grace_wire_read", "pointer, int64, pointer, pointer")
        self.integers = of_message("grace_wire_integers", "int64, out int64[]")
        self.texts = of_message("grace_wire_texts", "int64, out int64[,]")
        self.map = of_message("grace_wire_map", "int64, int64, out int64[,], out int64[]")
        self.opaque = of_message("grace_wire_opaque", "int64, out uint8[]")

    def read(
        self, root: str, message: bytes, limits: Any = None, sid_length: int = 1
    ) -> tuple[Head, RequestError | None]:
        """Check a message's bytes, and limits. The head of a faulty one has no more than texts."""
        table = _Table.get()
        head, fault = (c_int64 * (2 * len(table.fields)))(), (c_int64 * _FAULT_NUMBERS)()
        settings = None if limits is None else _settings(limits)
        self._read(message, len(message), table.numbers[root], settings, sid_length, head, fault)
        return Head(self, message, head), fault_of(fault, message) if fault[0] else None


SHORT_MESSAGES = WireReader(load_library_with_lock)
"""Takes microseconds: giving the lock away and waiting for it would take longer."""
LONG_MESSAGES = WireReader(load_library)


@lru_cache(maxsize=16)
def _settings(limits: Any) -> Any:
    _, *names = _Table.get().settings
    return (c_int64 * (1 + len(names)))(0, *(getattr(limits, name) for name in names))


def field_number(path: str) -> int:
    """Return the number of a field's row in the table."""
    return _Table.get().numbers[path]


def words_of(fault: str, **values: object) -> str:
    """Return the words of a fault that Python finds."""
    return next(words for name, _, words in _Table.get().faults if name == fault).format(**values)


def fault_of(numbers: Iterable[int], message: bytes) -> RequestError | None:
    """Return the error of a fault's numbers; its field is empty for bytes that are malformed."""
    wrong, field, *names, value, limit, place = numbers
    if not wrong:
        return None
    table = _Table.get()
    kind, logged, words = table.faults[wrong]
    path, unit, setting = table.fields[field]
    name, side = _names(names, message)
    text = words.format(
        value=value,
        limit=limit,
        place=place,
        name=name,
        path=path,
        unit=unit,
        setting=setting,
        number=_NOT_FINITE.get(value, ""),
        other=table.fields[value][0] if kind == "OtherKind" else "",
    )
    if kind == "Malformed":
        return RequestError("", text)
    if kind == "OtherKind":  # the fault of an entry
        path += ".{name}"
    in_words = path.format(name=name, side=side)
    # The log may hold names of the schema and the model, but none that the caller chose.
    return RequestError(
        in_words, text, in_words if logged == "true" else path.format(name="*", side="*")
    )


def _names(spans: Iterable[int], message: bytes) -> tuple[str, str]:
    name_at, name_size, side_at, side_size = spans
    name = message[name_at : name_at + name_size]
    return name.decode(), message[side_at : side_at + side_size].decode()


def read_batch(
    read: Callable[..., None], handle: int, messages: Sequence[bytes], size: int, *rows: Any
) -> BatchReport:
    """Have a native function read messages into rows; empty ones fill the batch up to `size`."""
    if not 0 <= len(messages) <= size:
        raise ValueError(f"a batch of {size} cannot hold {len(messages)} requests")
    pointers = (c_char_p * len(messages))(*messages)
    sizes = np.array([len(each) for each in messages], np.int64)
    faults = np.empty((len(messages), _FAULT_NUMBERS), np.int64)
    ends = np.empty(len(messages), np.int64)
    room, listed = 0, _UNKNOWN_ROOM
    while room < listed:
        room = listed
        unknown = np.empty((room, _UNKNOWN_NUMBERS), np.int64)
        arrays = (each.ctypes.data for each in (sizes, faults, unknown, ends))
        batch = np.array([len(messages), size, room, addressof(pointers), *arrays], np.int64)
        read(handle, batch, *rows)
        listed = int(ends[-1]) if len(messages) else 0
    found: tuple[RequestError | None, ...] = (None,) * len(messages)
    if faults[:, 0].any():
        found = tuple(map(fault_of, faults.tolist(), messages))
    if not listed:
        return found, ((),) * len(messages)
    own = zip(messages, pairwise([0, *ends.tolist()]), strict=True)
    return found, tuple(
        tuple(sorted({_entry_of(each, message) for each in unknown[begin:end].tolist()}))
        for message, (begin, end) in own
    )


def _entry_of(numbers: Sequence[int], message: bytes) -> str:
    """Return the path of a map's entry, within the map if that is `user` or `features`."""
    field, *spans = numbers
    name, side = _names(spans, message)
    path = _Table.get().fields[field][0]
    path += ".{side}" if "{name}" in path else ".{name}"
    path = path.format(name=name, side=side)
    return path if path.startswith("filters.") else path.partition(".")[2]
