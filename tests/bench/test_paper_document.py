"""docs/eligibility.md states every knob of the `paper` catalogue with its value."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grace.catalogues.paper import GeneratorKnobs, PaperKnobs


def test_every_knob_is_in_the_document_with_its_value(repository: Path) -> None:
    text = (repository / "docs" / "eligibility.md").read_text()
    table = text.partition("\n| knob | value | why |\n")[2].partition("\n\n")[0]
    told: dict[str, list[str]] = {}
    for line in table.splitlines()[1:]:
        cells = line.split("|")
        told[cells[1].strip()] = [value.strip() for value in cells[2].split(",")]
    knobs: dict[str, Any] = asdict(PaperKnobs()) | asdict(GeneratorKnobs())
    named = [name for names in told for name in re.findall(r"`(\w+)`", names)]
    assert named == list(dict.fromkeys(named))
    assert set(named) == set(knobs)
    for names, values in told.items():
        own = [knobs[name] for name in re.findall(r"`(\w+)`", names)]
        expected = own[0] if isinstance(own[0], tuple) else own
        assert [float(value) for value in values] == [float(value) for value in expected]
