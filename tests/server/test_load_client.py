"""The load client and `make load`, with our client and with ghz, against a real server."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grace.bench.load import sweep
from grace.bench.load.ghz import read_summary
from grace.configs.errors import InputError
from support.retrieve_calls import Counters, assert_counters_conserve
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


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
    data, out = write_requests(serving_files, tmp_path / "requests.jsonl"), tmp_path / "out.json"
    before = Counters.of(healthy_server)
    reasons = ("wrong_sid_space", "invalid_field")

    def failures(reason: str) -> float:
        return healthy_server.metric("grace_request_failures_total", reason=reason)

    failed_before = {reason: failures(reason) for reason in reasons}
    command = [sys.executable, "-m", "grace.bench.load", "--address", healthy_server.address]
    command += ["--data", str(data), "--rate", "63", "--seconds", "2", "--out", str(out)]
    command += ["--connections", "3"]  # the requests that warm them up are good
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    result = json.loads(out.read_text())
    own = result["grace"]
    # On a busy machine the client may have been the limit; it must then have said so.
    assert done.returncode == (0 if own["valid"] else 1), done.stderr
    assert own["withdrawn"] == 0
    assert own["warm_up_calls"] == 3
    seen = assert_counters_conserve(healthy_server, result["count"] + 3, before)
    assert (seen.ok, seen.failures) == (own["ok"] + 3, own["failed"])
    assert result["statusCodeDistribution"]["OK"] == own["ok"]
    assert own["reasons"] == {
        reason: failures(reason) - failed_before[reason] for reason in reasons
    }
    assert all(own["ms"][part]["p50"] >= 0 for part in ("queue", "generate", "overhead"))


def test_make_load_starts_a_server_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without ghz
    out = tmp_path / "load"
    sweep.main(["--out", str(out), "--rates", "63", "--seconds", "1"])
    run = read_summary(out / "rate-63.json")
    assert (run.client, run.offered, run.failed) == ("ours", 63, 0)
    assert "<td>63</td>" in (out / "report.html").read_text()
    assert '"event": "stopped", "exit_code": 0' in (out / "server.log").read_text()


def test_ghz_makes_the_calls_if_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving_files: ServingFiles
) -> None:
    """A stand-in for ghz records its arguments and writes ghz's result of a load without calls."""
    result = {
        "options": {"rps": 63}, "count": 0, "total": 1, "slowest": 0, "rps": 0,
        "statusCodeDistribution": {}, "details": None,
    }  # fmt: skip
    ghz = tmp_path / "bin" / "ghz"
    ghz.parent.mkdir()
    ghz.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "asked = sys.argv[1:]\n"
        f"pathlib.Path({str(tmp_path / 'asked')!r}).write_text('\\n'.join(asked))\n"
        "out = asked[asked.index('--output') + 1]\n"
        f"pathlib.Path(out).write_text({json.dumps(result)!r})\n"
    )
    ghz.chmod(ghz.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{ghz.parent}{os.pathsep}{os.environ['PATH']}")
    data, out = write_requests(serving_files, tmp_path / "requests.jsonl"), tmp_path / "load"
    sweep.main(["--address", "ads:1", "--data", str(data), "--out", str(out), "--rates", "63"])
    asked = (tmp_path / "asked").read_text().splitlines()
    options = dict(zip(asked[:-1:2], asked[1:-1:2], strict=True))
    assert asked[-1] == "ads:1"
    config = json.loads(Path(options.pop("--config")).read_text())
    assert (config["call"], config["async"]) == ("grace.v1.AdsRetrieval.Retrieve", True)
    assert json.loads(Path(options.pop("--data-file")).read_text())[3]["sid_space"] == "another"
    assert options == {
        "--rps": "63", "--connections": "4", "--duration": "10s", "--timeout": "1000ms",
        "--output": str(out / "rate-63.json"),
    }  # fmt: skip
    assert "<td>63</td>" in (out / "report.html").read_text()


def test_an_address_needs_requests_for_its_catalogue(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs --data, .* make load ADDRESS=ads:1 DATA="):
        sweep.main(["--address", "ads:1", "--out", str(tmp_path)])
