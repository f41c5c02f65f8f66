"""What docs/api.md shows is what a real server does: its replies and errors.

tests/cli/test_documents.py runs its commands.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grace.configs.generation import GenerationConfig
from support.command import run_python
from support.documents import blocks_of, the_block, the_file
from support.in_process import printed
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec

pytestmark = pytest.mark.subprocess

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "api.md"
RETRIEVE = "127.0.0.1:50051"
MEASURED = ("timings", "total_ms")
SIDS_SHOWN = 3
_NUMBER = re.compile(r"-?\d+\.\d+")


def shown_blocks() -> list[str]:
    """Return the reply and the explanation that the page shows."""
    return [block.text for block in blocks_of(PAGE) if (block.language, block.note) == ("json", "")]


def real_replies(files: ServingFiles, folder: Path) -> list[Any]:
    """Return the same from a fresh server, which takes the page's calls in their order."""
    generation = asdict(GenerationConfig.fitting(model_spec().vocab_sizes)) | {"max_batch": 1}
    config = files.write_config("api.yaml", generation=generation, state_dir=str(folder / "state"))
    at = json.loads(shown_blocks()[0])["at"]  # later, other ads are in flight
    request = json.loads(the_file(PAGE, "request.json")) | {"at": at}
    (folder / "request.json").write_text(json.dumps(request))
    asked = ("--request", folder / "request.json", "--json")
    with ServerProcess(config) as server:
        admin = ("--address", server.admin)
        reply = json.loads(printed("retrieve", *asked, "--address", server.address))
        sids = reply["sids"]
        sids["tokens"] = sids["tokens"][: SIDS_SHOWN * sids["length"]]
        sids["scores"] = sids["scores"][:SIDS_SHOWN]
        printed("admin", "stop", "advertiser", "7", "--json", *admin)
        ad_id = json.loads(shown_blocks()[1])["ad_id"]
        explained = json.loads(printed("explain", "--ad", ad_id, *asked, *admin))
    return [reply, explained]


def alike(real: Any, shown: Any) -> bool:
    """Compare all that depends neither on the time nor on how a machine rounds."""
    if isinstance(shown, dict):
        return real.keys() == shown.keys() and all(
            name in MEASURED or alike(real[name], value) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return len(real) == len(shown) and all(map(alike, real, shown))
    if isinstance(shown, str):
        numbers = [[float(n) for n in _NUMBER.findall(text)] for text in (real, shown)]
        return _NUMBER.sub("", real) == _NUMBER.sub("", shown) and alike(*numbers)
    return bool(real == (pytest.approx(shown, abs=1e-3) if isinstance(shown, float) else shown))


def test_the_replies_of_the_page_are_those_of_a_server_that_its_reader_has_started(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    real = real_replies(serving_files, tmp_path)
    for found, block in zip(real, shown_blocks(), strict=True):
        assert alike(found, json.loads(block)), f"write this into the page: {json.dumps(found)}"
    assert real[0]["counts"]["ads_returned"] == len(real[0]["ad_ids"]) > 0


def test_the_python_tells_the_reason_of_an_error(
    healthy_server: ServerProcess, tmp_path: Path
) -> None:
    request = json.loads(the_file(PAGE, "request.json"))
    request["features"]["sequences"]["clicks"]["sids"] = [1, 2, 3, 4, 5, 6, 7]
    (tmp_path / "request.json").write_text(json.dumps(request))
    code = the_block(PAGE, "python", RETRIEVE)
    done = run_python(code.replace(RETRIEVE, healthy_server.address), cwd=tmp_path)
    assert done.returncode == 1
    found = re.fullmatch(r"INVALID_ARGUMENT \(invalid_field\): (.*)\n", done.stderr)
    assert found is not None
    assert f"`{found[1]}`" in PAGE.read_text()
