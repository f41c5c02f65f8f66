"""The load client and `make load`, against a real server."""

import json
import sys
from pathlib import Path

import pytest

from grace.bench.load import tiny_server
from support.command import run_command
from support.retrieve_calls import Counters, assert_counters_conserve
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

PATIENT = ("--seconds", "1", "--timeout-ms", "60000")  # a busy machine may be slow


def write_requests(files: ServingFiles, path: Path) -> Path:
    """Write eleven requests: one names another SID space, one asks for too many ads."""
    requests = [dict(request) for request in files.requests[:11]]
    requests[3] |= {"sid_space": "another"}
    requests[7] |= {"max_ads": 999_999}
    path.write_text("\n".join(map(json.dumps, requests)) + "\n")
    return path


def test_the_client_and_the_server_count_the_same_calls(
    healthy_server: ServerProcess, serving_files: ServingFiles, tmp_path: Path
) -> None:
    data, out = write_requests(serving_files, tmp_path / "requests.jsonl"), tmp_path / "out"
    before = Counters.of(healthy_server)
    # On a busy machine the server refuses some, too.
    reasons = ("wrong_sid_space", "invalid_field", "overloaded", "deadline_unmeetable")

    def failures(reason: str) -> float:
        return healthy_server.metric("grace_request_failures_total", reason=reason)

    failed_before = {reason: failures(reason) for reason in reasons}
    command = [sys.executable, "-m", "grace.bench.load", "--address", healthy_server.address]
    command += ["--data", str(data), "--rate", "63", "--seconds", "1", "--out", str(out)]
    command += ["--connections", "3"]  # the requests that warm them up are good
    done = run_command(*command)
    result = json.loads((out / "rate-63.json").read_text())
    own = result["grace"]
    # On a busy machine the client may have been the limit; it must then have said so.
    assert done.returncode == (0 if own["valid"] else 1), done.stderr
    assert own["withdrawn"] == 0
    assert own["warm_up_calls"] == 3
    seen = assert_counters_conserve(healthy_server, result["count"] + 3, before)
    assert (seen.ok, seen.failures) == (own["ok"] + 3, own["failed"])
    assert result["statusCodeDistribution"]["OK"] == own["ok"]
    assert own["reasons"] == {
        reason: failed for reason in reasons if (failed := failures(reason) - failed_before[reason])
    }
    assert all(own["ms"][part]["p50"] >= 0 for part in ("queue", "generate", "overhead"))


def test_make_load_starts_a_server_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "load"
    code = tiny_server.main(["--out", str(out), "--rate", "63", *PATIENT])
    # On a busy machine the client may have been the limit; it must then have said so.
    shown = capsys.readouterr()
    assert code == (1 if "error: 63 calls/s: the client was" in shown.err else 0)
    own = json.loads((out / "rate-63.json").read_text())["grace"]
    assert (own["offered_rps"], own["failed"]) == (63, 0)
    report = (out / "report.md").read_text()
    assert report in shown.out
    assert "\n| 63 | " in report
