"""A load's result in ghz's schema, and the report of it."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from grace.bench.load.client import Call, ClosedLoop, LoadRun, OpenLoop, ServerTimes
from grace.bench.load.client_process import merged
from grace.bench.load.ghz import invalid_because, load_report, load_result

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMES = ServerTimes(queue=300, input=100, features=200, generate=3000, post=400)
LOAD = OpenLoop(rate=63, seconds=3, seed=7)


def run_of(*calls: Call) -> LoadRun:
    return LoadRun("ads:50051", BEGAN, 3.5, calls, 4)


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


def test_the_report_has_a_row_for_each_load_and_says_what_failed() -> None:
    good = run_of(ok(0.5, 0.01))
    ours = load_result(MIXED, LOAD, 4, None)
    report = load_report([ours, load_result(good, ClosedLoop(16, 3), 4, None)])
    ends = "7 | 3 | 3 | 1 | 20.0 | 30.0 | 30.0 | 30.0 | 30.0 | 2.0 |"
    assert f"| 63 | 0.9 | {ends}\n| 0.3 | 0.3 | 1 | 1 | 0 | 0 | " in report
    assert "| offered/s | none given | queue_full |\n| --- | --- | --- |\n| 63 | 1 | 2 |" in report
    assert "| 63 | 0.30 | 0.10 | 0.20 | 3.00 | 0.40 | 16.00 |" in report
    assert "63 calls/s: not valid: the server went away" in report
    alone = load_report([load_result(good, LOAD, 4, None)])
    assert "not valid" not in alone
    assert "by reason" not in alone
