"""Sections: plain values become a frozen dataclass, or an error with its path."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
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
    yaml.safe_load(Path(__file__).with_name("wrong_values.yaml").read_text(encoding="utf-8")),
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
