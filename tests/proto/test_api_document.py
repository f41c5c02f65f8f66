"""docs/api.md names every field, limit and reason there is, and no other."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grace.configs.serving import LimitsConfig
from grace.proto import retrieval_pb2 as wire
from grace.server.errors import STATUS_OF


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "api.md").read_text()


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """The code in the first cell of every table row."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def names_of(message: Any) -> Iterator[str]:
    """The fields of a message and of those in it; a map of lists is one field of its table."""
    for field in message.fields:
        yield field.name
        below = field.message_type
        if below is not None and below.GetOptions().map_entry:
            below = below.fields_by_name["value"].message_type
        if below is not None and len(below.fields) > 1:
            yield from names_of(below)


@pytest.mark.parametrize("message", [wire.RetrieveRequest, wire.RetrieveResponse])
def test_every_field_has_a_row_and_every_row_a_field(page: str, message: Any) -> None:
    documented = first_cells(section(page, message.DESCRIPTOR.name))
    fields = set(names_of(message.DESCRIPTOR))
    if message is wire.RetrieveResponse:
        fields -= {field.name for field in wire.Timings.DESCRIPTOR.fields}  # in one row
    assert sorted(documented) == sorted(fields)


def test_every_field_of_the_status_is_named(page: str) -> None:
    text = section(page, "Health, reflection, status")
    named = set(re.findall(r"`(\w+)`", text))
    assert set(names_of(wire.GetStatusResponse.DESCRIPTOR)) <= named
    states = {name for name in wire.GetStatusResponse.State.keys() if "UNSPEC" not in name}  # noqa: SIM118
    assert states <= named


def test_the_page_gives_every_limit_with_its_default(page: str) -> None:
    documented = dict(re.findall(r"`limits\.(\w+)` \((\d+)\)", page))
    assert {name: int(value) for name, value in documented.items()} == asdict(LimitsConfig())


def test_the_table_of_errors_has_every_reason(page: str) -> None:
    documented = re.findall(r"^\| [A-Z_]+ \| `(\w+)` \|", section(page, "Errors"), re.MULTILINE)
    assert sorted(documented) == sorted(STATUS_OF)


def test_every_field_and_outcome_of_an_explanation_is_named(page: str) -> None:
    named = set(re.findall(r"`(\w+)`", section(page, "Explain")))
    assert set(names_of(wire.ExplainResponse.DESCRIPTOR)) <= named
    outcomes = wire.ExplainResponse.Outcome.keys()
    assert {name for name in outcomes if "UNSPEC" not in name} <= named
