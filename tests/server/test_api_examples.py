"""The requests and the Python of docs/api.md, sent to a real server as they stand there."""

import json
import re
from pathlib import Path

import pytest

from support.command import run_grace, run_python
from support.server_process import ServerProcess

pytestmark = pytest.mark.subprocess

DOCUMENTED_ADDRESS = "127.0.0.1:50051"
DOCUMENTED_ADMIN = "127.0.0.1:50052"


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "api.md").read_text()


@pytest.fixture
def folder(page: str, tmp_path: Path) -> Path:
    """A folder with the page's request.json."""
    request, _reply, _explained = blocks(page, "json")
    (tmp_path / "request.json").write_text(request)
    return tmp_path


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_complete_request_is_answered_in_the_form_of_the_documented_reply(
    page: str, folder: Path, healthy_server: ServerProcess
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


def test_the_python_prints_ads_and_scores(
    page: str, folder: Path, healthy_server: ServerProcess
) -> None:
    code, _status = blocks(page, "python")
    assert DOCUMENTED_ADDRESS in code
    done = run_python(code.replace(DOCUMENTED_ADDRESS, healthy_server.address), cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"(\d+ -\d+\.\d+\n){1,3}", done.stdout)


def test_the_python_tells_the_reason_of_an_error(
    page: str, folder: Path, healthy_server: ServerProcess
) -> None:
    request = json.loads((folder / "request.json").read_text())
    request["features"]["sequences"]["clicks"]["sids"] = [1, 2, 3, 4, 5, 6, 7]
    (folder / "request.json").write_text(json.dumps(request))
    code, _status = blocks(page, "python")
    done = run_python(code.replace(DOCUMENTED_ADDRESS, healthy_server.address), cwd=folder)
    assert done.returncode == 1
    found = re.fullmatch(r"INVALID_ARGUMENT \(invalid_field\): (.*)\n", done.stderr)
    assert found is not None
    assert f"`{found[1]}`" in page


def test_the_python_of_the_status_prints_it(
    page: str, healthy_server: ServerProcess, tmp_path: Path
) -> None:
    _request, code = blocks(page, "python")
    assert DOCUMENTED_ADMIN in code
    done = run_python(code.replace(DOCUMENTED_ADMIN, healthy_server.admin), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("state: STATE_SERVING\n")
    assert 'sid_space: "synth-tiny-1"' in done.stdout


def test_the_documented_explanation_has_the_fields_of_a_real_one(
    page: str, folder: Path, healthy_server: ServerProcess
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
