"""Items in JSON: one object that holds all of them, or a line per item.

`.json` is the `.index.json` of LETTER, LC-Rec and MiniOneRec: {"0": ["<a_12>", "<b_3>"], ...}. Its
entries are read one by one, so that memory does not grow with the file. A file that is not JSON is
refused as a whole. `.jsonl` has a line {"item_id": "B01", "token_ids": [12, 3, 77]} per
item, and each line is checked by itself. Tokens are texts or integers in both.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from grace.configs.errors import InputError
from grace.index.importers.items import RawItem
from grace.index.progress import Advance
from grace.index.rejects import Fault
from grace.index.storage.strict_json import shown, without_repeats

LONGEST_LINE = 1 << 20  # bytes
_CHUNK = 1 << 20  # characters
_LONGEST_ENTRY = 1 << 20  # characters of one value
_SPACE = re.compile(r"[ \t\r\n]+")


def read_json_lines(path: Path, advance: Advance) -> Iterator[RawItem]:
    """Yield an item for each line that is not empty."""
    for row, line in enumerate(lines(path, advance)):
        if line is None:
            yield RawItem(row, fault=Fault("line", None, f"is longer than {LONGEST_LINE} bytes"))
        elif line.strip():
            yield _item(row, line)


def lines(path: Path, advance: Advance) -> Iterator[bytes | None]:
    """Yield a file's lines without their ends; None for one that is too long to be an item."""
    read = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            read += len(line)
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST_LINE)
                read += len(rest)
            advance(read)
            yield None if len(line) > LONGEST_LINE else line.rstrip(b"\r\n")


def _item(row: int, line: bytes) -> RawItem:
    try:
        text = line.decode()
        value = json.loads(text, object_pairs_hook=without_repeats, parse_constant=_no_constant)
    except RecursionError:
        return RawItem(row, fault=Fault("line", None, "is nested too deeply"))
    except UnicodeDecodeError:
        return RawItem(row, fault=Fault("line", None, "is not UTF-8"))
    except ValueError as error:
        return RawItem(row, fault=Fault("line", str(error), "is not JSON that we read"))
    if not isinstance(value, dict):
        return RawItem(row, fault=Fault("line", shown(value), "is not an object"))
    for key in ("item_id", "token_ids"):
        if key not in value:
            return RawItem(row, value.get("item_id"), fault=Fault(key, None, "is missing"))
    return RawItem(row, value["item_id"], value["token_ids"])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_index_json(path: Path, advance: Advance) -> Iterator[RawItem]:
    """`advance` is called with how many bytes have been read."""
    with path.open(encoding="utf-8", newline="") as file:
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

    def __init__(self, path: Path, file: TextIO, advance: Advance) -> None:
        self._path = path
        self._file = file
        self._advance = advance
        self._json = json.JSONDecoder(parse_constant=_no_constant)
        self._text = ""
        self._at = 0
        self._before = 0  # characters in front of the window

    def refuse(self, fault: str) -> NoReturn:
        place = self._before + self._at
        raise InputError(f"{self._path}: not JSON that we read, at character {place}: {fault}")

    def next_char(self) -> str:
        """Return the next character that is no space, without taking it; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

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
        try:
            more = self._file.read(_CHUNK)
        except UnicodeDecodeError:
            self.refuse("expected UTF-8")
        self._advance(self._file.buffer.tell())
        self._before += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)
