"""A load's result in ghz's schema, and the report that reads our results and ghz's alike."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grace.bench.load.__main__ import main as load
from grace.bench.load.client import Call, ClosedLoop, LoadRun, OpenLoop, ServerTimes
from grace.bench.load.client_process import merged
from grace.bench.load.ghz import invalid_because, load_result, read_summary
from grace.bench.load.report import load_report
from grace.configs.errors import InputError
from grace.server.errors import draining

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMES = ServerTimes(queue=300, input=100, features=200, generate=3000, post=400)
LOAD = OpenLoop(rate=63, seconds=3, seed=7)


def run_of(*calls: Call, seconds: float = 3.5) -> LoadRun:
    return LoadRun("ads:50051", BEGAN, seconds, calls, 4)


def ok(intended: float, latency: float, late: float = 0.0) -> Call:
    return Call(intended, intended + late, intended + latency, "OK", server=TIMES)


MIXED = run_of(
    ok(0.5, 0.010),
    ok(0.6, 0.030, late=0.002),
    ok(0.7, 0.020),
    Call(0.8, 0.8, 0.801, "ResourceExhausted", "queue_full", "<the queue> is full"),
    Call(0.9, 0.9, 0.901, "ResourceExhausted", "queue_full", "<the queue> is full"),
    Call(1.0, 1.0, 1.001, "Unavailable", "", "connection refused"),
    Call(1.1, 1.1, 1.900, "Canceled", withdrawn=True),
)


def test_a_result_is_in_ghz_s_schema_and_has_our_own_numbers_in_addition() -> None:
    """Latencies are those of OK calls, and a withdrawn call is no error."""
    result = load_result(MIXED, LOAD, connections=4, timeout_seconds=0.5)
    own, options = result.pop("grace"), result.pop("options")
    detail = result.pop("details")[1]
    latencies = result.pop("latencyDistribution")
    assert result.pop("average") > 0
    assert result == {
        "endReason": "normal", "date": "2026-01-31T12:00:00Z", "count": 7, "total": 3_500_000_000,
        "fastest": 10_000_000, "slowest": 30_000_000, "rps": 2.0,
        "errorDistribution": {
            "rpc error: code = ResourceExhausted desc = <the queue> is full": 2,
            "rpc error: code = Unavailable desc = connection refused": 1,
        },
        "statusCodeDistribution": {
            "OK": 3, "ResourceExhausted": 2, "Unavailable": 1, "Canceled": 1
        },
    }  # fmt: skip
    timestamp = "2026-01-31T12:00:00.630000Z"
    assert detail == {"timestamp": timestamp, "latency": 30_000_000, "error": "", "status": "OK"}
    assert {row["percentage"]: row["latency"] for row in latencies}[50] == 20_000_000
    assert (options["rps"], options["timeout"]) == (63, 500_000_000)
    closed = load_result(MIXED, ClosedLoop(in_flight=16, seconds=3), 4, None)["options"]
    assert (closed["concurrency"], "rps" in closed) == (16, False)
    assert own["reasons"] == {"queue_full": 2, "none given": 1}
    assert (own["ok"], own["failed"], own["withdrawn"], own["warm_up_calls"]) == (3, 3, 1, 4)
    medians = [own["ms"][name]["p50"] for name in ("generate", "queue", "overhead")]
    assert medians == pytest.approx([3, 0.3, 20 - 4])


GONE = Call(1.0, 1.2, 1.21, "Unavailable", text="failed to connect to all addresses")
DRAINING = Call(1.0, 1.0, 1.21, "Unavailable", reason="draining")
WRONG = Call(1.0, 1.0, 1.001, "FailedPrecondition", "wrong_sid_space", "sid_space: another")
LATE_AND_WRONG = replace(WRONG, sent=1.02, ended=1.021)


def calls_of(latency: float, late: float) -> list[Call]:
    """A hundred calls, of which two are late."""
    return [ok(i / 100, latency, late if i < 2 else 0.0) for i in range(100)]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        (calls_of(latency=0.02, late=0.004), None),
        (calls_of(latency=0.02, late=0.006), "the client was the limit: .*separate core"),
        (calls_of(latency=0.3, late=0.02), None),
        (calls_of(latency=0.3, late=0.04), "the client was the limit: .*separate core"),
        (
            [ok(0.5, 0.02), GONE, GONE],
            "the server went away: 2 of 3 calls found no server or lost it, the first 1.2",
        ),
        ([ok(0.5, 0.02), DRAINING], None),
        ([LATE_AND_WRONG] * 3, "the server refused every request, 3 of 3 with wrong_sid_space"),
        ([*calls_of(latency=0.02, late=0.0), WRONG], None),
        ([], "no call was made"),
    ],
)
def test_a_run_is_valid_only_if_it_measures_the_server(
    calls: list[Call], fault: str | None
) -> None:
    """Lateness counts from the intended time, as latency does, in whichever process it arose."""
    run = merged([run_of(*calls[::2]), run_of(*calls[1::2])])
    found = invalid_because(run)
    assert load_result(run, LOAD, 4, None)["grace"]["invalid_because"] == found
    assert (found is None) == (fault is None)
    assert re.match(fault or "", found or "")


def write_ours(folder: Path, run: LoadRun = MIXED) -> Path:
    path = folder / "ours.json"
    path.write_text(json.dumps(load_result(run, LOAD, 4, None)))
    return path


def write_ghz(folder: Path, statuses: dict[str, int], errors: dict[str, int]) -> Path:
    """A file in the form of `ghz --format json`: nanoseconds, Go's time format, ghz's names."""
    ends = [status for status, count in statuses.items() for _ in range(count)]
    result = {
        "options": {"host": "ads:50051", "rps": 111},
        "count": len(ends),
        "total": 3012345678,
        "slowest": 12000000,
        "rps": 1.66,
        "errorDistribution": errors,
        "statusCodeDistribution": statuses,
        "details": [
            {"latency": (10 + i) * 1000000, "error": "rpc error", "status": status}
            for i, status in enumerate(ends)
        ]
        or None,
    }
    path = folder / "ghz.json"
    path.write_text(json.dumps(result))
    return path


def test_a_result_of_ghz_is_summarized_without_the_calls_that_it_cut_off_itself(
    tmp_path: Path,
) -> None:
    # A timed run closes the connections, with up to one call on each of its workers.
    ends = {"OK": 3, "Unavailable": 5, "Canceled": 3}
    closing = {ghz_error("Canceled", "grpc: the client connection is closing"): 3}
    errors = {ghz_error("Unavailable", draining().text): 1, **CLOSED_BY_GHZ, **closing}
    ghz = read_summary(write_ghz(tmp_path, ends, errors))
    assert (ghz.client, ghz.offered, ghz.late_ms) == ("ghz", 111, None)
    assert (ghz.count, ghz.ok, ghz.failed, ghz.withdrawn) == (11, 3, 1, 7)
    assert ghz.latency_ms == {50: 11, 90: 12, 95: 12, 99: 12}
    assert (ghz.reasons, ghz.invalid_because) == ({"Unavailable": 1}, None)


def ghz_error(status: str, text: str) -> str:
    return f"rpc error: code = {status} desc = {text}"


def closed_by_ghz(port: int) -> str:
    ends = f"127.0.0.1:{port}->127.0.0.1:50051"
    text = f"error reading from server: read tcp {ends}: use of closed network connection"
    return ghz_error("Unavailable", text)


CLOSED_BY_GHZ = {closed_by_ghz(4001): 2, closed_by_ghz(4002): 2}
REFUSED = "connection error: dial tcp 127.0.0.1:1: connect: connection refused"


@pytest.mark.parametrize(
    ("ends", "errors", "fault"),
    [
        ({}, {}, "no call was made"),
        (
            {"Unavailable": 9},
            {ghz_error("Unavailable", REFUSED): 9},
            "the server went away: 9 of 9 calls found no server or lost it; its log",
        ),
        (
            {"OK": 3, "Unavailable": 6},
            {ghz_error("Unavailable", "error reading from server: EOF"): 2, **CLOSED_BY_GHZ},
            "the server went away: 2 of 9 calls",
        ),
        ({"OK": 3, "Unavailable": 2}, {ghz_error("Unavailable", draining().text): 2}, None),
        (
            {"FailedPrecondition": 7, "InvalidArgument": 2},
            {ghz_error("FailedPrecondition", "x"): 7, ghz_error("InvalidArgument", "y"): 2},
            "the server refused every request, 7 of 9 with FailedPrecondition",
        ),
        ({"ResourceExhausted": 9}, {ghz_error("ResourceExhausted", "wait"): 9}, None),
    ],
)  # fmt: skip
def test_a_ghz_run_that_measures_nothing_is_not_valid(
    ends: dict[str, int], errors: dict[str, int], fault: str | None, tmp_path: Path
) -> None:
    found = read_summary(write_ghz(tmp_path, ends, errors)).invalid_because
    assert (found or "").startswith(fault or "")
    assert (found is None) == (fault is None)


GHZ = """#!/bin/sh
echo "$*" > {folder}/asked
for last; do :; done
[ "$last" = ads:9 ] && echo "rpc error: nothing listens" >&2 && exit 1
while [ "$1" != --output ]; do shift; done
cp {folder}/ghz.json "$2"
"""


@pytest.mark.subprocess
def test_ghz_makes_the_calls_if_it_is_asked_for_and_its_fault_ends_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ghz(tmp_path, {"OK": 3}, {})
    (tmp_path / "ghz").write_text(GHZ.format(folder=tmp_path))
    (tmp_path / "ghz").chmod(0o755)
    (tmp_path / "requests.jsonl").write_text("{}\n{}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    given = ["--data", f"{tmp_path}/requests.jsonl", "--out", f"{tmp_path}/out", "--ghz"]
    assert load([*given, "--rate", "111", "--seconds", "3", "--address", "ads:50051"]) == 0
    assert "\n| 111 | 1.0 | 3 | 3 | 0 | 0 | " in capsys.readouterr().out
    asked = (tmp_path / "asked").read_text()
    for part in (f"--data-file {tmp_path}/out/ghz-data.json", "--rps 111", "--duration 3s"):
        assert part in asked
    assert json.loads((tmp_path / "out" / "ghz-data.json").read_text()) == [{}, {}]
    fault = r"^ads:9: ghz ended with exit code 1: rpc error: nothing listens; .*listen\.reflection$"
    with pytest.raises(InputError, match=fault):
        load([*given, "--rate", "111", "--address", "ads:9"])


def test_the_report_has_a_row_for_each_load_and_says_what_failed(tmp_path: Path) -> None:
    ours, ghz = read_summary(write_ours(tmp_path)), read_summary(write_ghz(tmp_path, {"OK": 3}, {}))
    report = load_report([ours, ghz])
    ends = "7 | 3 | 3 | 1 | 20.0 | 30.0 | 30.0 | 30.0 | 30.0 | 2.0 | ours |"
    assert f"| 63 | 0.9 | {ends}\n| 111 | 1.0 | 3 | 3 | 0 | 0 | " in report
    assert "| offered/s | none given | queue_full |\n| --- | --- | --- |\n| 63 | 1 | 2 |" in report
    assert "| 63 | 0.30 | 0.10 | 0.20 | 3.00 | 0.40 | 16.00 |" in report
    assert "63 calls/s: not valid: the server went away" in report
    good = load_report([read_summary(write_ours(tmp_path, run_of(ok(0.5, 0.01))))])
    assert "not valid" not in good
    assert "by reason" not in good


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}')
    with pytest.raises(InputError, match=r"other\.json: not in ghz's JSON schema"):
        read_summary(other)
    with pytest.raises(InputError, match=r"absent\.json: not the result of a load"):
        read_summary(tmp_path / "absent.json")
