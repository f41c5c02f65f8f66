"""`python -m grace.bench.load`: its examples work, and what it cannot do it refuses before the
load."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.bench.load import __main__ as command
from grace.bench.load import sweep
from grace.bench.load.calls import Call, LoadRun
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveResponse

EXAMPLES = [line for line in (command.__doc__ or "").splitlines() if line.startswith("    python")]


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that finds no ads."""
    pool = ThreadPoolExecutor(4)
    serving = grpc.server(pool)
    reply = RetrieveResponse().SerializeToString()
    method: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: reply)
    serving.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grace.v1.AdsRetrieval", {"Retrieve": method}),)
    )
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    yield f"127.0.0.1:{port}"
    serving.stop(None).wait()
    pool.shutdown()


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the examples look for it."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo") / "requests.jsonl"
    path.parent.mkdir()
    path.write_text('{"request_id": "one"}\n{"request_id": "two"}\n')
    return path


@pytest.mark.subprocess
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_its_help_work(
    example: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(command.__file__).parents[2]))
    arguments = shlex.split(example)[3:]
    code = command.main([*arguments, "--address", address, "--seconds", "0.5"])
    out, err = capsys.readouterr()
    # On a busy machine the client may have been the limit; it must then have said so.
    assert code == (1 if "not a valid run" in err else 0)
    assert "0 failed, 0 withdrawn" in out
    assert "4 to warm up not counted" in out
    if "--out" in arguments:
        assert json.loads(Path("load.json").read_text())["grace"]["warm_up_calls"] == 4
        assert "data:image/png" in Path("load.html").read_text()
    else:
        assert [path.name for path in Path().iterdir()] == ["demo"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--rate 0", "--rate: must be a number above 0, got '0'"),
        ("--rate nan", "--rate: must be a number above 0, got 'nan'"),
        ("--rate soon", "--rate: must be a number above 0, got 'soon'"),
        ("--rate 63 --seconds -1", "--seconds: must be a number above 0, got '-1'"),
        ("--in-flight 0", "--in-flight: must be a whole number above 0, got '0'"),
        (
            "--rate 63 --connections 2.5",
            "--connections: must be a whole number above 0, got '2.5'",
        ),
        ("--rate 63 --out no/x.json", "--out: no/x.json: its folder does not exist; make it first"),
        ("--rate 63 --out demo", "--out: demo: is a folder; name a file"),
        ("--rate 63 --out x.json --report no/x.html", "--report: no/x.html: its folder does not"),
        ("--rate 63 --processes 65", "--processes: must be at most 64, got '65'"),
        ("--rate 63 --data no.jsonl", "--data: no.jsonl: there is no such file of requests"),
    ],
)
def test_a_bad_option_is_refused_by_name_and_value(
    arguments: str, fault: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--data", str(data), *arguments.split()])
    assert fault in capsys.readouterr().err
    assert not Path("no").exists()


def test_a_page_needs_a_result_file(data: Path) -> None:
    with pytest.raises(InputError, match=r"--report page\.html needs --out"):
        command.main(["--data", str(data), "--rate", "63", "--report", "page.html"])


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--in-flight 1 --processes 2", "--in-flight 1: too few for 2 processes"),
        ("--rate 63 --report page.html", "--report page.html needs --out"),
    ],
)
def test_what_it_cannot_do_exits_otherwise_than_an_invalid_run(
    arguments: str, fault: str, data: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "grace.bench.load", "--data", str(data.resolve())]
    done = subprocess.run(
        [*command, *arguments.split()], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {fault}")


def test_failures_are_told_with_their_reasons(
    data: Path, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> LoadRun:
        calls = [Call(0.1 * i, 0.1 * i, 0.1 * i, "Unavailable") for i in range(3)]
        calls.append(Call(0.5, 0.5, 0.51, "ResourceExhausted", reason="queue_full"))
        return LoadRun(address, datetime.now(UTC), 1.0, tuple(calls), 1)

    monkeypatch.setattr(command, "run_together", lost)
    code = command.main(["--data", str(data), "--in-flight", "1", "--address", address])
    out, err = capsys.readouterr()
    assert code == 1
    assert "4 calls, 0 OK, 4 failed (3 Unavailable, 1 queue_full), 0 withdrawn" in out
    assert "not a valid run: the server went away: 3 of 4 calls" in err
    assert "1 call under way" in err


def test_make_load_refuses_a_rate_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        sweep.main(["--out", "load", "--rates", "21", "0"])
    assert "--rates: must be a whole number above 0, got '0'" in capsys.readouterr().err
    assert not Path("load").exists()
