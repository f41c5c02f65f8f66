"""docs/snapshot.md is enough to write a reader, and says what the code says."""

import re
from pathlib import Path

import pytest

from index.matchers import MatcherMode
from index.storage.layout import expected_arrays
from index.storage.manifest import FORMAT_VERSION, parse_manifest
from support.forgery import make_version, read_fields


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "snapshot.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)
def test_every_array_is_in_the_document_with_its_dtype(
    page: str, mode: MatcherMode, tmp_path: Path
) -> None:
    version = make_version(tmp_path, mode=mode)
    manifest = parse_manifest((version / "MANIFEST.json").read_bytes())
    assert manifest.matchers.mode == mode
    rows = [line.replace("\\|", "|") for line in page.splitlines() if line.startswith("| `")]
    for file, (dtype, _) in expected_arrays(manifest).items():
        name = re.sub(r"\.(location|audience)\.", ".SET.", file)
        assert any(f"`{name}`" in row and f"`{dtype}`" in row for row in rows), file


@pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)
def test_every_key_of_a_manifest_is_in_the_document(
    page: str, mode: MatcherMode, tmp_path: Path
) -> None:
    fields = read_fields(make_version(tmp_path, mode=mode))
    inner = [key for name in ("matchers", "counts") for key in fields[name]]
    inner += list(fields["matchers"].get(mode.value, {}))
    for key in [*fields, *inner, *fields["files"][0]]:
        assert f"`{key}`" in page, key
    assert f"format, version {FORMAT_VERSION}" in page


def test_every_sentence_of_a_fault_is_one_that_the_code_can_say(
    page: str, repository: Path
) -> None:
    sources = [
        *(repository / "index" / "storage").glob("*.py"),
        repository / "index" / "invariants.py",
        repository / "index" / "partition_invariants.py",
        repository / "configs" / "sections.py",
    ]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    # A sentence may be broken over lines and have values in its middle.
    code = re.sub(r'"\s*f?"', "", code)
    faults = page.split("## Faults")[1]
    cells = [line.split("|")[2] for line in faults.splitlines() if line.startswith("| ")][2:]
    phrases = [phrase.strip() for cell in cells for phrase in cell.split("·")]
    assert len(phrases) > 40
    unsaid = [
        phrase
        for phrase in phrases
        if not all(words.strip() in code for words in re.split(r"\bN\b|, ", phrase))
    ]
    assert unsaid == []
