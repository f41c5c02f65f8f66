"""The replies and errors of docs/api.md are those of a real server."""

import json
import re
from pathlib import Path

import pytest

from support.command import run_grace, run_python
from support.documents import blocks_of
from support.server_process import ServerProcess

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


def test_the_complete_request_is_answered_in_the_form_of_the_documented_reply(
    page: Path, folder: Path, healthy_server: ServerProcess
) -> None:
    address = ("--address", healthy_server.address)
    done = run_grace("retrieve", "--request", "request.json", "--json", *address, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    reply, documented = json.loads(done.stdout), json.loads(blocks(page, "json")[1])
    assert reply.keys() == documented.keys()
    assert reply["sids"].keys() == documented["sids"].keys()
    assert (reply["request_id"], reply["profile"]) == ("r1", "full")
    assert reply["ignored_names"] == []
    assert reply["counts"]["ads_returned"] == len(reply["ad_ids"]) > 0


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


def test_the_documented_explanation_has_the_fields_of_a_real_one(
    page: Path, folder: Path, healthy_server: ServerProcess
) -> None:
    documented = json.loads(blocks(page, "json")[2])
    asked = ("explain", "--ad", documented["ad_id"], "--request", "request.json", "--json")
    done = run_grace(*asked, "--address", healthy_server.admin, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    explained = json.loads(done.stdout)
    assert explained.keys() == documented.keys()
    assert explained["outcome"] == documented["outcome"]
    assert explained["sid"] == documented["sid"]
    assert explained["rules"] == documented["rules"]
    assert explained["steps"][0].keys() == documented["steps"][0].keys()
