"""`python -m grace.bench.load`: its examples work, and it refuses wrong options before the load."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.bench.load import __main__ as command
from grace.bench.load.shots import read_shots
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.known_server import REPLY, known_server

EXAMPLES = [line for line in (command.__doc__ or "").splitlines() if line.startswith("    python")]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The requests that the examples name."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo") / "requests.jsonl"
    path.parent.mkdir()
    path.write_text('{"request_id": "one"}\n{"request_id": "two"}\n')
    return path


@pytest.mark.subprocess
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_its_help_work(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(example)[3:]
    with known_server(lambda request, context: REPLY) as address:
        code = command.main([*arguments, "--address", address, "--seconds", "0.5"])
    out, err = capsys.readouterr()
    # On a busy machine the client may have been the limit; it must then have said so.
    assert code == (1 if "calls/s: the client was the limit" in err else 0)
    assert re.search(r"^\| 50 \| [\d.]+ \| (\d+) \| \1 \| 0 \| 0 \|", out, re.MULTILINE)
    if "--out" in arguments:
        files = sorted(path.name for path in Path("load").iterdir())
        assert files == ["rate-100.json", "rate-50.json", "report.md"]
        assert json.loads(Path("load/rate-50.json").read_text())["grace"]["warm_up_calls"] == 4
    else:
        assert [path.name for path in Path().iterdir()] == ["demo"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--rate 0", "--rate: must be a number above 0, got '0'"),
        ("--in-flight 0", "--in-flight: must be a whole number above 0, got '0'"),
        ("--rate 63 --data no.jsonl", "--data: no.jsonl: there is no such file of requests"),
    ],
)
def test_a_bad_option_is_refused_by_name_and_value(
    arguments: str, fault: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--data", str(data), *arguments.split()])
    assert fault in capsys.readouterr().err


def test_a_lost_server_ends_with_1(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(_: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        raise AssertionError

    with known_server(answer) as address:
        arguments = ["--data", str(data), "--rate", "63", "--seconds", "0.5", "--address", address]
        assert command.main(arguments) == 1
    assert "error: 63 calls/s: the server went away: " in capsys.readouterr().err


def test_lines_of_json_become_messages(tmp_path: Path) -> None:
    """Only a newline ends a line."""
    path = tmp_path / "requests.jsonl"
    path.write_text('{"request_id": "a\u2028b\x85c"}\r\n\n{}\n', encoding="utf-8")
    first, second = read_shots(path, 0.25)
    assert RetrieveRequest.FromString(first.body).request_id == "a\u2028b\x85c"
    assert (second.body, second.timeout_seconds) == (b"", 0.25)
    with pytest.raises(InputError, match=r"absent\.jsonl: .*grace synth"):
        read_shots(tmp_path / "absent.jsonl", None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}\n{", "requests.jsonl: not JSON lines"),
        ("", "requests.jsonl: holds no request"),
        ('{}\n{"max_add": 3}', "requests.jsonl:2: .*max_add"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=fault):
        read_shots(path, None)
