"""Strict YAML: the YAML 1.2 core scalars, and nothing that surprises the writer of a file.

    NO, yes, on        strings (YAML 1.1 reads booleans); only true and false are booleans
    12:30, 1_000       strings (YAML 1.1 reads integers)
    010                a string, since readers disagree on 8 or 10; 0o10 and 0x8 are integers
    2024-01-31, .nan   strings, and so is a number of more than 40 digits

Refused, with file and line: a key written twice, anchors, aliases and tags, a second document, keys
that are not text, nesting deeper than 32, files over 16 MiB. Keys are always strings, as written.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import yaml

from grace.configs.errors import ConfigError
from grace.configs.regular_files import read_regular

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

MAX_BYTES = 16 << 20  # a model.yaml lists the tokens of up to 16 x 65,536 codes
MAX_DEPTH = 32

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]{0,39})(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def read_yaml(path: Path) -> dict[str, Value]:
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        fault = f"cannot be read: {error.strerror}; correct it, or name another file"
        raise ConfigError(f"{path}: {fault}") from None
    except UnicodeDecodeError as error:
        fault = f"byte {error.start} is not UTF-8: save the file as UTF-8"
        raise ConfigError(f"{path}: {fault}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> dict[str, Value]:
    """Parse the mapping in `text`; errors call it `name`."""
    try:
        return _Reader(name, yaml.parse(text, Loader=yaml.SafeLoader)).document()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from None


class _Reader:
    """Builds values from parser events, where anchors, tags and lines are still visible."""

    def __init__(self, name: str, events: Iterator[yaml.Event]) -> None:
        self._name = name
        self._events = events

    def document(self) -> dict[str, Value]:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise ConfigError(f"{self._name}: empty: expected `key: value` lines")
        event = next(self._events)
        value = self._value(event, 1)
        next(self._events)  # the end of the document
        if not isinstance(following := next(self._events), yaml.StreamEndEvent):
            raise self._fault(following, "a second document: keep one per file")
        if not isinstance(value, dict):
            raise self._fault(event, "expected `key: value` lines at the top")
        return value

    def _value(self, event: yaml.Event, depth: int) -> Value:
        if isinstance(event, yaml.AliasEvent):
            raise self._fault(event, f"alias *{event.anchor}: aliases are refused: write it out")
        assert isinstance(event, yaml.NodeEvent)
        if event.anchor is not None:
            raise self._fault(event, f"anchor &{event.anchor}: anchors are refused: remove it")
        if getattr(event, "tag", None) is not None:
            raise self._fault(event, f"tag {event.tag}: tags are refused: remove it")  # type: ignore[attr-defined]
        if isinstance(event, yaml.ScalarEvent):
            return self._plain(event) if event.implicit[0] else self._text(event)
        if depth > MAX_DEPTH:
            raise self._fault(event, f"nested deeper than {MAX_DEPTH}")
        if isinstance(event, yaml.SequenceStartEvent):
            values = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                values.append(self._value(event, depth + 1))
            return values
        assert isinstance(event, yaml.MappingStartEvent)
        return self._mapping(depth)

    def _mapping(self, depth: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._value(event, depth + 1)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._fault(event, "a key must be text, not a list or a mapping")
            key = self._text(event)
            if key in values:
                fault = f"key {key!r} is already on line {first_lines[key]}: keep one of them"
                raise self._fault(event, fault)
            first_lines[key] = _line(event)
            values[key] = self._value(next(self._events), depth + 1)
        return values

    def _text(self, event: yaml.ScalarEvent) -> str:
        """The text, with pairs of surrogate escapes (JSON's way) made the characters they mean."""
        try:
            return str(event.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._fault(event, "half a character (a lone surrogate escape)") from None

    def _plain(self, event: yaml.ScalarEvent) -> Value:
        text = str(event.value)
        if text in _NULL:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        return text

    def _fault(self, event: yaml.Event, fault: str) -> ConfigError:
        return ConfigError(f"{self._name}:{_line(event)}: {fault}")


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1
