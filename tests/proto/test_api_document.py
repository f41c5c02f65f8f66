"""docs/api.md names every field, limit and reason there is, and no other."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse

from grace.client import request_of_json
from grace.configs.serving import LimitsConfig
from grace.proto import retrieval_pb2 as wire
from grace.server.errors import STATUS_OF
from support.documents import blocks_of


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


def test_its_examples_are_messages_of_the_api(repository: Path) -> None:
    blocks = blocks_of(repository / "docs" / "api.md")
    *requests, reply, explained = (block.text for block in blocks if block.language == "json")
    for each in requests:
        request_of_json(json.loads(each))
    spelled = {name for each in requests for name in json.loads(each)}
    assert spelled == {field.name for field in wire.RetrieveRequest.DESCRIPTOR.fields}
    values = json.loads(reply)
    del values["total_ms"]
    answer = Parse(json.dumps(values), wire.RetrieveResponse())
    assert set(values) == {field.name for field in answer.DESCRIPTOR.fields}
    assert len(answer.ad_ids) == len(answer.scores) == len(answer.sids.sid_of_ad)
    assert len(answer.sids.tokens) == answer.sids.length * len(answer.sids.scores)
    explanation = Parse(explained, wire.ExplainResponse())
    spelled = set(json.loads(explained)) | {"limited_by", "score"}  # absent from this one
    assert spelled == {field.name for field in explanation.DESCRIPTOR.fields}


def test_every_field_and_outcome_of_an_explanation_is_named(page: str) -> None:
    named = set(re.findall(r"`(\w+)`", section(page, "Explain")))
    assert set(names_of(wire.ExplainResponse.DESCRIPTOR)) <= named
    outcomes = wire.ExplainResponse.Outcome.keys()
    assert {name for name in outcomes if "UNSPEC" not in name} <= named
