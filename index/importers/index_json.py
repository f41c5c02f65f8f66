"""LETTER, LC-Rec and MiniOneRec's `.index.json`: {"0": ["<a_12>", "<b_3>", "<c_77>"], ...}

Entries are read one by one, so that memory does not grow with the file. Tokens may be plain
integers. A file that is not JSON is refused as a whole, since the rest of it cannot be understood.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from grace.configs.errors import InputError
from grace.index.importers.item_batches import RawItem

_CHUNK = 1 << 20  # bytes
_LONGEST_ENTRY = 1 << 20  # characters of one value
_SPACE = " \t\r\n"


def no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_index_json(path: Path, advance: Callable[[int], None]) -> Iterator[RawItem]:
    """`advance` is called with how many bytes have been read."""
    with path.open("rb") as file:
        text = _JsonText(path, file, advance)
        text.take("{", "an object of item ids and their tokens")
        row = 0
        while text.next_char() != "}":
            if row:
                text.take(",", "',' or '}'")
            if text.next_char() != '"':
                text.refuse("expected an item id in quotes")
            item_id = text.value()
            text.take(":", "':'")
            yield RawItem(row, item_id, text.value())
            row += 1
        text.take("}", "'}'")
        if text.next_char():
            text.refuse("something follows the object")


class _JsonText:
    """A window onto the file's text, moved as values are taken from it."""

    def __init__(self, path: Path, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self._path = path
        self._file = file
        self._advance = advance
        self._utf8 = getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder(parse_constant=no_constant)
        self._text = ""
        self._at = 0
        self._before = 0  # characters in front of the window
        self._bytes = 0

    def refuse(self, fault: str) -> NoReturn:
        place = self._before + self._at
        raise InputError(f"{self._path}: not JSON that we read, at character {place}: {fault}")

    def next_char(self) -> str:
        """Return the next character that is no space, without taking it; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._fill():
                return ""

    def take(self, char: str, expected: str) -> None:
        found = self.next_char()
        if found != char:
            self.refuse(
                f"expected {expected}, got {found!r}" if found else f"ends before {expected}"
            )
        self._at += 1

    def value(self) -> Any:
        """Take the next value. One that fails at the window's end is tried again with more text."""
        if not self.next_char():
            self.refuse("ends before a value")
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except RecursionError:
                self.refuse("nested too deeply")
            except ValueError as error:
                if len(self._text) - self._at <= _LONGEST_ENTRY and self._fill():
                    continue
                self.refuse(getattr(error, "msg", str(error)))
            if end < len(self._text) or not self._fill():
                self._at = end
                return value

    def _fill(self) -> bool:
        chunk = self._file.read(_CHUNK)
        try:
            more = self._utf8.decode(chunk, final=not chunk)
        except UnicodeDecodeError:
            self.refuse("expected UTF-8")
        self._bytes += len(chunk)
        self._advance(self._bytes)
        self._before += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(chunk)
