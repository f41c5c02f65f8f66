"""A server as a child process, for `make load`: one that does not start is reported and is gone."""

import json
import os
import sys
from pathlib import Path

import pytest

from grace import configs
from grace.bench.load import tiny_server
from grace.bench.running_server import RunningServer, write_server_config
from grace.configs.errors import CallError

pytestmark = pytest.mark.subprocess

PROFILES = Path(configs.__file__).parent / "serve.yaml"


def test_a_server_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    folders = tmp_path / "snapshots", tmp_path / "model"
    config = write_server_config(tmp_path / "serve.yaml", *folders, PROFILES, devise="cuda")
    server = RunningServer(config, tmp_path / "server.log")
    assert server.last_lines == []
    refused = pytest.raises(CallError, match=r"ended with exit code 2 before it was ready: error: ")
    with refused as caught, server:
        pass
    assert "devise" in str(caught.value)
    assert "devise" in server.last_lines[-1]
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.parametrize("level", ["error", "critical"])
def test_a_failure_next_to_a_server_prints_the_errors_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    lines = [{"event": "ready", "level": "info"}, {"event": "batch_failed", "level": level}]
    program = f"print({json.dumps(lines[0])!r}); print({json.dumps(lines[1])!r}, flush=True)"
    command = sys.executable, "-c", f"{program}; import time; time.sleep(60)"
    log = tmp_path / "server.log"
    server = RunningServer(tmp_path / "serve.yaml", log, command=command)
    with pytest.raises(CallError, match="until it is well"), server:
        server.wait_until(lambda: False, "it is well", 0.1)
    assert capsys.readouterr().err == f"the server's log: {json.dumps(lines[1])}\n"


def test_make_load_starts_a_server_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, patient = tmp_path / "load", ("--seconds", "1", "--timeout-ms", "60000")
    code = tiny_server.main(["--out", str(out), "--rate", "63", *patient])
    # On a busy machine the client may have been the limit; it must then have said so.
    shown = capsys.readouterr()
    assert code == (1 if "error: 63 calls/s: the client was" in shown.err else 0)
    own = json.loads((out / "rate-63.json").read_text())["grace"]
    assert (own["offered_rps"], own["failed"]) == (63, 0)
    report = (out / "report.md").read_text()
    assert report in shown.out
    assert "\n| 63 | " in report
