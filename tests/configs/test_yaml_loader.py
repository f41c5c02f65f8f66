"""Strict YAML: which text becomes which value, and which text is refused."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import ConfigError
from grace.configs.yaml_loader import MAX_BYTES, MAX_DEPTH, parse_yaml, read_yaml
from support.strategies import examples


def read(text: str) -> Any:
    return parse_yaml(text, "test.yaml")


def fault(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "text",
    [
        *("NO", "no", "yes", "on", "off", "y", "tRUE", "12:30", "1:30:59", "1_000", "010", "-007"),
        *("00", "0b11", "0o8", "1e", ".", "1.2.3", "2024-01-31", "18-24", "65+", "<<", "=", "a/b"),
        *(".inf", "-.inf", ".nan", "9" * 41, "1" * 5000),
    ],
)
def test_text_that_looks_like_another_type_stays_text(text: str) -> None:
    assert read(f"key: {text}") == {"key": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("0", 0),
        ("-17", -17),
        ("+17", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("18446744073709551615", 2**64 - 1),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1e-3", -0.001),
        ("'true'", "true"),
        ('"17"', "17"),
        ("''", ""),
        ("|\n  a\n  b", "a\nb"),
    ],
)
def test_core_scalars_are_read_as_yaml_1_2_says(text: str, value: object) -> None:
    found = read(f"key: {text}")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "test.yaml:3: key 'a' is already on line 1: keep one of them"),
        ("x:\n  7: 1\n  '7': 2", "test.yaml:3: key '7' is already on line 2: keep one of them"),
        ("a: &b 1", "test.yaml:1: anchor &b: anchors are refused: remove it"),
        ("a: *b", "test.yaml:1: alias *b: aliases are refused: write it out"),
        ("a: 1\nb: !!str 1", "test.yaml:2: tag tag:yaml.org,2002:str: tags are refused: remove it"),
        ("a: !mine [1]", "test.yaml:1: tag !mine: tags are refused: remove it"),
        ("!!python/name:os.system : 1", "test.yaml:1: tag tag:yaml.org,2002:python/name:os.system"),
        ("a: 1\n---\nb: 1", "test.yaml:2: a second document: keep one per file"),
        ("", "test.yaml: empty: expected `key: value` lines"),
        ("# nothing\n", "test.yaml: empty: expected `key: value` lines"),
        ("---\n", "test.yaml:2: expected `key: value` lines at the top"),
        ("- a", "test.yaml:1: expected `key: value` lines at the top"),
        ("just text", "test.yaml:1: expected `key: value` lines at the top"),
        ("? [1, 2]\n: 3", "test.yaml:1: a key must be text, not a list or a mapping"),
        ("a: [1", "test.yaml:1: not YAML: "),
        ("a:\n\tb: 1", "test.yaml:2: not YAML: "),
        ("a: \x07", "test.yaml: not YAML: "),
        ('a: "\\ud800"', "test.yaml:1: half a character (a lone surrogate escape)"),
        ('"\\udc00": 1', "test.yaml:1: half a character (a lone surrogate escape)"),
    ],
)
def test_a_fault_names_file_line_and_remedy(text: str, message: str) -> None:
    assert fault(text).startswith(message)


def test_the_deepest_allowed_nesting_is_read() -> None:
    lists = MAX_DEPTH - 1
    assert read(f"key: {'[' * lists}1{']' * lists}")
    assert "nested deeper" in fault(f"key: {'[' * MAX_DEPTH}1{']' * MAX_DEPTH}")


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for content in (b"a: \xc3\xa9\n", b"\xef\xbb\xbfa: \xc3\xa9\r\n"):
        file.write_bytes(content)
        assert read_yaml(file) == {"a": "\xe9"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Path.exists, "cannot be read: No such file"),
        (Path.mkdir, "cannot be read: not a regular file; "),
        (lambda file: file.write_bytes(b"a: caf\xe9\n"), "byte 6 is not UTF-8: save the file"),
        (
            lambda file: file.write_bytes(b"#" * MAX_BYTES + b"\xff"),
            "cannot be read: larger than 1",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "file.yaml")
    with pytest.raises(ConfigError, match=rf"file\.yaml: {message}"):
        read_yaml(tmp_path / "file.yaml")


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=9)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=9,
)


@examples(35)
@given(st.dictionaries(texts, trees, min_size=1, max_size=3))
def test_any_plain_values_survive_a_round_trip(values: dict[str, Any]) -> None:
    assert read(json.dumps(values, ensure_ascii=True)) == values


@given(st.text() | st.text("ab:-[]{}#&*!|>'\"%@`,?~0 \n\t\\", max_size=40))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with suppress(ConfigError):
        assert isinstance(read(text), dict)
