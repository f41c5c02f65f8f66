"""The replies that docs/api.md shows, as a server gives them to a reader who follows the page.

    PYTHONPATH=tests python tests/support/api_examples.py

writes those that have changed into the page.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from grace.configs.generation import GenerationConfig
from support.documents import blocks_of, the_file
from support.in_process import invoke_grace
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec, write_serving_files

COMMAND = "PYTHONPATH=tests python tests/support/api_examples.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
MEASURED = ("timings", "total_ms")
SIDS_SHOWN = 3
WIDTH = 100
_NUMBER = re.compile(r"-?\d+\.\d+")


def shown_blocks() -> list[str]:
    """Return the reply and the explanation that the page shows."""
    return [block.text for block in blocks_of(PAGE) if (block.language, block.note) == ("json", "")]


def real_replies(files: ServingFiles, folder: Path) -> list[Any]:
    """Return the same of a fresh server, which takes the page's calls in their order."""
    generation = asdict(GenerationConfig.fitting(model_spec().vocab_sizes)) | {"max_batch": 1}
    config = files.write_config("api.yaml", generation=generation, state_dir=str(folder / "state"))
    (folder / "request.json").write_text(the_file(PAGE, "request.json"))
    asked = ("--request", folder / "request.json", "--json")
    with ServerProcess(config) as server:
        admin = ("--address", server.admin)
        reply = _said("retrieve", *asked, "--address", server.address)
        sids = reply["sids"]
        sids["tokens"] = sids["tokens"][: SIDS_SHOWN * sids["length"]]
        sids["scores"] = sids["scores"][:SIDS_SHOWN]
        _said("admin", "stop", "advertiser", "7", "--json", *admin)
        explained = _said("explain", "--ad", json.loads(shown_blocks()[1])["ad_id"], *asked, *admin)
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


def _said(*arguments: str | Path) -> Any:
    done = invoke_grace(*arguments)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def _ordered(real: Any, shown: Any) -> Any:
    """Return the real values in the page's order of names; what was measured stays as it is."""
    if isinstance(real, dict) and isinstance(shown, dict):
        names = [*(name for name in shown if name in real), *(real.keys() - shown.keys())]
        kept = {name: shown[name] for name in MEASURED if name in shown}
        return {name: kept.get(name, _ordered(real[name], shown.get(name))) for name in names}
    if isinstance(real, list) and isinstance(shown, list) and shown:
        return [_ordered(each, shown[0]) for each in real]
    return real


def _text(reply: dict[str, Any]) -> str:
    """Return the reply as the page shows it, in lines of at most `WIDTH`."""
    lines = []
    for name, value in reply.items():
        head = f"  {json.dumps(name)}: "
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"    {_filled(row, 4)}" for row in value)
            lines.append(f"{head}[\n{rows}\n  ]")
        else:
            lines.append(head + _filled(value, len(head)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _filled(value: Any, column: int) -> str:
    line = json.dumps(value)
    if not isinstance(value, dict) or column + len(line) < WIDTH:
        return line
    lines = [""]
    for name, each in value.items():
        part = f"{json.dumps(name)}: {json.dumps(each)}, "
        if lines[-1] and column + len(lines[-1]) + len(part) > WIDTH:
            lines.append("")
        lines[-1] += part
    return "{" + f"\n{' ' * (column + 1)}".join(map(str.rstrip, lines)).rstrip(",") + "}"


def main() -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        real = real_replies(write_serving_files(folder), folder)
    text = PAGE.read_text(encoding="utf-8")
    for block, found in zip(shown_blocks(), real, strict=True):
        if not alike(found, shown := json.loads(block)):
            text = text.replace(block, _text(_ordered(found, shown)))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
