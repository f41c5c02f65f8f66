"""The replies and errors of docs/api.md are those of a real server."""

import json
import re
from pathlib import Path

import pytest

from support import api_examples
from support.command import run_python
from support.documents import blocks_of
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

DOCUMENTED_ADDRESS = "127.0.0.1:50051"


@pytest.fixture(scope="module")
def page(repository: Path) -> Path:
    return repository / "docs" / "api.md"


@pytest.fixture
def folder(page: Path, tmp_path: Path) -> Path:
    """A folder with the page's request.json."""
    request, _reply, _explained = blocks(page, "json")
    (tmp_path / "request.json").write_text(request)
    return tmp_path


def blocks(page: Path, language: str) -> list[str]:
    return [block.text for block in blocks_of(page) if block.language == language]


def test_the_replies_of_the_page_are_those_of_a_server_that_its_reader_has_started(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    real = api_examples.real_replies(serving_files, tmp_path)
    for found, block in zip(real, api_examples.shown_blocks(), strict=True):
        shown = json.loads(block)
        assert api_examples.alike(found, shown), f"run `{api_examples.COMMAND}`: {found}"
    assert real[0]["counts"]["ads_returned"] == len(real[0]["ad_ids"]) > 0


def test_the_python_tells_the_reason_of_an_error(
    page: Path, folder: Path, healthy_server: ServerProcess
) -> None:
    request = json.loads((folder / "request.json").read_text())
    request["features"]["sequences"]["clicks"]["sids"] = [1, 2, 3, 4, 5, 6, 7]
    (folder / "request.json").write_text(json.dumps(request))
    code, _status = blocks(page, "python")
    done = run_python(code.replace(DOCUMENTED_ADDRESS, healthy_server.address), cwd=folder)
    assert done.returncode == 1
    found = re.fullmatch(r"INVALID_ARGUMENT \(invalid_field\): (.*)\n", done.stderr)
    assert found is not None
    assert f"`{found[1]}`" in page.read_text()
