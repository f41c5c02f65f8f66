"""Sections: plain values become a frozen dataclass, or an error with its path."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import ConfigError
from grace.configs.sections import load_section
from support.strategies import examples


@dataclass(frozen=True, slots=True)
class Decoder:
    heads: int
    layers: int = 3
    scale: float = 1.0


@dataclass(frozen=True)
class Limits:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"low {self.low} is above high {self.high}: swap them")
        if self.low == self.high == 0:
            raise ValueError("low and high are 0: set one")


@dataclass(frozen=True)
class Model:
    decoder: Decoder
    name: str = "m"
    tied: bool = False
    folder: Path = Path("out")
    mode: Literal["cd", "union", 7] = "cd"
    start: float | None = None
    beams: tuple[int, ...] = (1, 63)
    span: tuple[str, int] = ("a", 1)
    vocabularies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    extra: tuple[Decoder, ...] = ()
    derived: int = field(init=False, default=9)


DECODER = {"heads": 2}


def fault(values: object, source: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        load_section(Model, values, source)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decoder": {"layer": 1}}, "decoder: unknown key 'layer'; known: heads, layers, scale"),
        ({"decoder": {}}, "decoder: missing key 'heads'"),
        ({}, "missing key 'decoder'"),
        ({"decoder": DECODER, 7: 1}, "unknown key 7; known: beams, decoder, extra, folder"),
        ({"decoder": DECODER, "derived": 1}, "unknown key 'derived'; known: beams"),
        ({"decoder": None}, "decoder: expected keys with values, got nothing"),
        ({"decoder": [1]}, "decoder: expected keys with values, got a list of 1"),
        ([], "expected keys with values, got a list of 0"),
    ],
)
def test_an_error_about_an_unknown_or_missing_key_has_its_path(
    values: object, message: str
) -> None:
    assert fault(values).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("decoder", {"heads": "four"}, "decoder.heads: expected an integer, got 'four' (a string)"),
        ("decoder", {"heads": True}, "decoder.heads: expected an integer, got true (a boolean)"),
        ("decoder", {"heads": 1.0}, "decoder.heads: expected an integer, got 1.0 (a number)"),
        ("decoder", {"heads": 1, "scale": "1"}, "decoder.scale: expected a number, got '1'"),
        ("decoder", {"heads": 1, "scale": False}, "decoder.scale: expected a number, got false"),
        ("decoder", {"heads": 1, "scale": float("nan")}, "decoder.scale: expected a finite number"),
        ("name", False, "name: expected a string, got false (a boolean); quote it"),
        ("name", 12, "name: expected a string, got 12 (an integer); quote it"),
        ("name", None, "name: expected a string, got nothing"),
        ("name", ["a"], "name: expected a string, got a list of 1"),
        ("folder", 1, "folder: expected a string, got 1 (an integer); quote it"),
        ("tied", 0, "tied: expected true or false, got 0 (an integer)"),
        ("tied", "yes", "tied: expected true or false, got 'yes' (a string)"),
        ("mode", "CD", "mode: expected one of cd, union, 7, got 'CD' (a string)"),
        ("mode", 7.0, "mode: expected one of cd, union, 7, got 7.0 (a number)"),
        ("start", "x", "start: expected a number, got 'x' (a string)"),
        ("beams", 5, "beams: expected a list, got 5 (an integer)"),
        ("beams", "15", "beams: expected a list, got '15' (a string)"),
        ("beams", [1, "2"], "beams[1]: expected an integer, got '2' (a string)"),
        ("span", ["a"], "span: expected a list of 2 values, got a list of 1"),
        ("span", ["a", "b"], "span[1]: expected an integer, got 'b' (a string)"),
        ("vocabularies", [], "vocabularies: expected keys with values, got a list of 0"),
        ("vocabularies", {1: []}, "vocabularies: expected string keys, got 1 (an integer)"),
        ("vocabularies", {"a": [False]}, "vocabularies.a[0]: expected a string, got false"),
        ("limits", {"a": {"low": 2, "high": 1}}, "limits.a: low 2 is above high 1: swap them"),
        ("limits", {"a": {"low": 0, "high": 0}}, "limits.a: low and high are 0: set one"),
        ("extra", [{"heads": 1}, {}], "extra[1]: missing key 'heads'"),
        ("name", 10**99, "name: expected a string, got 1000000"),
    ],
)
def test_an_error_about_a_wrong_value_has_its_path(key: str, value: object, message: str) -> None:
    found = fault({"decoder": DECODER, key: value})
    assert found.startswith(message)
    assert len(found) < 150


TEXTS = st.text(max_size=9)
DECODERS = st.builds(Decoder, st.integers(), st.integers(), st.floats(-9, 9))


@examples(30)
@given(
    st.builds(
        Model,
        decoder=DECODERS,
        name=TEXTS,
        tied=st.booleans(),
        folder=st.just(Path("x")),
        mode=st.sampled_from(["cd", "union", 7]),
        start=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        beams=st.lists(st.integers(), max_size=3).map(tuple),
        span=st.tuples(TEXTS, st.integers()),
        vocabularies=st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3).map(tuple), max_size=3),
        limits=st.dictionaries(TEXTS, st.builds(Limits, st.integers(0, 3), st.integers(4, 7))),
        extra=st.lists(DECODERS, max_size=2).map(tuple),
    )
)
def test_any_section_written_as_plain_values_comes_back_equal(model: Model) -> None:
    plain: dict[str, Any] = asdict(model) | {"folder": str(model.folder)}
    del plain["derived"]
    assert load_section(Model, plain) == model
