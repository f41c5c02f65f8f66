"""docs/operations.md lists every setting as the sections declare it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from grace.configs.errors import InputError
from grace.configs.marked_text import replaced
from grace.configs.serving import ServingConfig
from grace.configs.settings import settings_document


@dataclass(frozen=True)
class Inner:
    """What is inside."""

    ratio: Annotated[float, "how much"] = 0.5
    mode: Annotated[Literal["a", "b"], "which"] = "a"


@dataclass(frozen=True)
class Outer:
    """All of it."""

    folder: Annotated[Path, "where"]
    inners: Annotated[dict[str, Inner], "by name"]
    limit: Annotated[int | None, "how many"] = None
    inner: Inner = field(default_factory=Inner)


def test_the_document_has_the_settings_as_they_are_declared(repository: Path) -> None:
    text = (repository / "docs" / "operations.md").read_text()
    assert replaced(text, "settings", settings_document(ServingConfig)) == text, "run `make fix`"


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in settings_document(ServingConfig).splitlines() if line[:3] == "| `"]
    assert len(rows) > 30
    assert [row for row in rows if row.split("|")[4].strip() == ""] == []


def test_the_table_lists_sections_by_path_with_types_and_defaults() -> None:
    text = settings_document(Outer)
    assert "| `folder` | path | required | where |" in text
    assert "| `limit` | integer, or none | none | how many |" in text
    assert "### `inners.<name>`" in text
    assert "### `inner`\n\nWhat is inside.\n" in text
    assert text.count("| `mode` | `a` or `b` | `a` | which |") == 2


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(InputError, match="no marks"):
        replaced("# Operations\n", "settings", "| setting |")
