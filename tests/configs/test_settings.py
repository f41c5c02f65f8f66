"""docs/operations.md lists every setting as the sections declare it."""

from pathlib import Path

from grace.configs.marked_text import replaced
from grace.configs.serving import ServingConfig
from grace.configs.settings import settings_document


def test_the_document_has_the_settings_as_they_are_declared(repository: Path) -> None:
    text = (repository / "docs" / "operations.md").read_text()
    assert replaced(text, "settings", settings_document(ServingConfig)) == text, "run `make fix`"


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in settings_document(ServingConfig).splitlines() if line[:3] == "| `"]
    assert len(rows) > 30
    assert [row for row in rows if row.split("|")[4].strip() == ""] == []
