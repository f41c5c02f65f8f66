"""A load's result: ghz's schema, and what counts as what in it."""

import math
from datetime import UTC, datetime

import grpc
import pytest

from grace.bench.load.calls import Call, LoadRun, ServerTimes, status_name
from grace.bench.load.client import ClosedLoop, OpenLoop
from grace.bench.load.result import invalid_because, load_result, percentile

TIMES = ServerTimes(queue=300, input=100, features=200, generate=3000, post=400)
LOAD = OpenLoop(rate=63, seconds=3, seed=7)


def run_of(*calls: Call, seconds: float = 3.5) -> LoadRun:
    return LoadRun("ads:50051", datetime(2026, 1, 31, 12, tzinfo=UTC), seconds, calls, 4)


def ok(intended: float, latency: float, late: float = 0.0) -> Call:
    return Call(intended, intended + late, intended + latency, "OK", server=TIMES)


MIXED = run_of(
    ok(0.5, 0.010),
    ok(0.6, 0.030, late=0.002),
    ok(0.7, 0.020),
    Call(0.8, 0.8, 0.801, "ResourceExhausted", "queue_full", "the queue is full"),
    Call(0.9, 0.9, 0.901, "ResourceExhausted", "queue_full", "the queue is full"),
    Call(1.0, 1.0, 1.001, "Unavailable", "", "connection refused"),
    Call(1.1, 1.1, 1.900, "Canceled", withdrawn=True),
)


@pytest.mark.parametrize(
    ("percentage", "value"), [(0.1, 1), (10, 1), (10.1, 2), (50, 5), (99, 10), (100, 10)]
)
def test_a_percentile_is_the_nearest_rank(percentage: float, value: float) -> None:
    assert percentile(list(range(1, 11)), percentage) == value


def test_the_result_has_every_field_of_ghz_s_schema() -> None:
    result = load_result(MIXED, LOAD, connections=4, timeout_seconds=0.5)
    assert set(result) - {"grace"} == {
        "endReason", "options", "date", "count", "total", "average", "fastest", "slowest", "rps",
        "errorDistribution", "statusCodeDistribution", "latencyDistribution", "histogram",
        "details",
    }  # fmt: skip
    assert result["date"] == "2026-01-31T12:00:00Z"
    assert result["total"] == 3_500_000_000
    assert result["options"]["rps"] == 63
    assert result["options"]["timeout"] == 500_000_000
    assert result["rps"] == pytest.approx(7 / 3.5)
    assert result["details"][1] == {
        "timestamp": "2026-01-31T12:00:00.630000Z",
        "latency": 30_000_000,
        "error": "",
        "status": "OK",
    }


def test_only_ok_calls_are_in_percentiles_histogram_and_extremes() -> None:
    result = load_result(MIXED, LOAD, 4, None)
    assert (result["fastest"], result["slowest"]) == (10_000_000, 30_000_000)
    marks = {row["percentage"]: row["latency"] for row in result["latencyDistribution"]}
    assert list(marks) == [10, 25, 50, 75, 90, 95, 99]
    assert marks[50] == 20_000_000
    histogram = result["histogram"]
    assert len(histogram) == 11
    assert sum(bucket["count"] for bucket in histogram) == 3
    assert sum(bucket["frequency"] for bucket in histogram) == pytest.approx(1)
    assert (histogram[0]["mark"], histogram[-1]["mark"]) == pytest.approx((0.01, 0.03))


def test_calls_are_counted_by_status_error_and_reason() -> None:
    result = load_result(MIXED, LOAD, 4, None)
    assert result["count"] == 7 == sum(result["statusCodeDistribution"].values())
    assert result["statusCodeDistribution"] == {
        "OK": 3, "ResourceExhausted": 2, "Unavailable": 1, "Canceled": 1
    }  # fmt: skip
    own = result["grace"]
    assert own["reasons"] == {"queue_full": 2, "none given": 1}
    assert own["ok"] + own["failed"] + own["withdrawn"] == 7
    assert own["warm_up_calls"] == 4


def test_a_call_that_the_client_withdrew_is_no_error() -> None:
    result = load_result(MIXED, LOAD, 4, None)
    assert result["errorDistribution"] == {
        "rpc error: code = ResourceExhausted desc = the queue is full": 2,
        "rpc error: code = Unavailable desc = connection refused": 1,
    }
    assert [detail["error"] for detail in result["details"] if detail["status"] == "Canceled"] == [
        ""
    ]


def test_stages_and_overhead_come_from_the_replies() -> None:
    measured = load_result(MIXED, LOAD, 4, None)["grace"]["ms"]
    assert measured["generate"]["p50"] == 3
    assert measured["queue"]["max"] == 0.3
    assert measured["overhead"]["p50"] == pytest.approx(20 - 4)


def test_latency_counts_from_the_intended_time() -> None:
    call = ok(1.0, 0.25, late=0.2)
    assert call.latency == pytest.approx(0.25)
    assert call.lateness == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("late", "latency", "valid"),
    [(0.004, 0.02, True), (0.006, 0.02, False), (0.02, 0.3, True), (0.04, 0.3, False)],
)
def test_a_run_is_valid_only_if_the_client_was_not_the_limit(
    late: float, latency: float, valid: bool
) -> None:
    run = run_of(*(ok(i / 10, latency, late) for i in range(20)))
    limit = invalid_because(run)
    assert (limit is None) == valid
    assert load_result(run, LOAD, 4, None)["grace"]["valid"] == valid
    if limit is not None:
        assert "the client was the limit" in limit


def test_a_run_that_lost_its_server_says_so_and_does_not_blame_the_client() -> None:
    gone = Call(1.0, 1.2, 1.21, "Unavailable", text="failed to connect to all addresses")
    run = run_of(ok(0.5, 0.02), gone, gone)
    told = load_result(run, LOAD, 4, None)["grace"]["invalid_because"]
    assert told.startswith(
        "the server went away: 2 of 3 calls found none or lost it, the first 1.2"
    )
    refused = Call(1.0, 1.0, 1.21, "Unavailable", reason="draining")
    assert invalid_because(run_of(ok(0.5, 0.02), refused)) is None


def test_a_run_without_calls_says_so_and_makes_a_result() -> None:
    result = load_result(run_of(), LOAD, 4, None)
    assert result["count"] == 0
    assert result["grace"]["invalid_because"].startswith("no call was made")
    assert not any(math.isnan(result[name]) for name in ("average", "rps", "fastest"))


def test_a_closed_loop_offers_no_rate() -> None:
    result = load_result(MIXED, ClosedLoop(in_flight=16, seconds=3), 4, None)
    assert result["options"]["concurrency"] == 16
    assert "rps" not in result["options"]
    assert result["grace"]["offered_rps"] is None


def test_statuses_have_the_names_that_ghz_has_for_them() -> None:
    names = {code.name: status_name(code) for code in grpc.StatusCode}
    assert names["OK"] == "OK"
    assert names["CANCELLED"] == "Canceled"
    assert names["RESOURCE_EXHAUSTED"] == "ResourceExhausted"
    assert names["INVALID_ARGUMENT"] == "InvalidArgument"
