"""A load's result in ghz's JSON schema, with our own numbers in addition under `grace`.

As in ghz, durations are nanoseconds, a detail's timestamp is the end of its call, and the average
and the rate count every call; all other latencies are of calls that ended OK. Unlike ghz's,
latencies count from when a call was due, and a call that the client withdrew is no error.
docs/performance.md describes the report of results.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any

from grace.bench.load.client import STAGES, Call, Load, LoadRun, OpenLoop
from grace.bench.markdown import markdown_table
from grace.bench.result_file import commit, machine

PERCENTAGES = (10, 25, 50, 75, 90, 95, 99)
MAX_DETAILS = 1_000_000  # ghz's limit, too
CALL = "grace.v1.AdsRetrieval.Retrieve"

LATENESS_LIMIT = 0.005
LATENESS_SHARE = 0.1

REQUEST_FAULTS = ("InvalidArgument", "FailedPrecondition")
"""Statuses by which a server refuses the contents of a request."""


def percentile(ascending: Sequence[float], percentage: float) -> float:
    """Return the smallest value that `percentage` % of them do not exceed (nearest rank)."""
    rank = math.ceil(len(ascending) * percentage / 100)
    return ascending[max(rank, 1) - 1]


def invalid_because(run: LoadRun) -> str | None:
    """Return why the run does not measure the server under this load, or None if it does.

    Every latency includes the client's lateness. So the P99 of lateness may be at most 5 ms, or a
    tenth of the P99 of latency if that is more.
    """
    calls = run.calls
    if not calls:
        return "no call was made; give a higher rate or more seconds"
    # A server that refuses a call gives a reason.
    lost = [call.ended for call in calls if call.status == "Unavailable" and not call.reason]
    if lost:
        return (
            f"the server went away: {len(lost):,} of {len(calls):,} calls found no server or lost "
            f"it, the first {min(lost):.1f} s after the begin; its log has the cause"
        )
    failed = [call for call in calls if call.error]
    ended = {call.status for call in calls if call.status == "OK" or call.error}
    if ended and ended <= set(REQUEST_FAULTS):
        ((reason, most),) = Counter(call.reason or call.status for call in failed).most_common(1)
        return (
            f"the server refused every request, {most:,} of {len(calls):,} with {reason}; give "
            "requests for its catalogue and its model"
        )
    lateness = percentile(sorted(call.lateness for call in calls), 99)
    latency = percentile(sorted(call.latency for call in calls), 99)
    allowed = max(LATENESS_LIMIT, LATENESS_SHARE * latency)
    if lateness > allowed:
        return (
            f"the client was the limit: 1 % of its calls were {lateness * 1e3:.1f} ms late or "
            f"more, and {allowed * 1e3:.1f} ms is allowed; lower the rate, or give "
            "the client a separate core or machine"
        )
    return None


def load_result(
    run: LoadRun, load: Load, connections: int, timeout_seconds: float | None
) -> dict[str, Any]:
    """Return the result of a run whose client processes had `connections` each."""
    calls = run.calls
    good = sorted(call.latency for call in calls if call.status == "OK")
    return {
        "endReason": "normal",
        "options": {
            "call": CALL,
            "host": run.address,
            "connections": connections * run.processes,
            "duration": _ns(load.seconds),
            "timeout": _ns(timeout_seconds or 0),
            **(
                {"async": True, "rps": round(load.rate)}
                if isinstance(load, OpenLoop)
                else {"concurrency": load.in_flight}
            ),
        },
        "date": run.began.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "count": len(calls),
        "total": _ns(run.seconds),
        "average": _ns(sum(call.latency for call in calls) / len(calls)) if calls else 0,
        "fastest": _ns(good[0]) if good else 0,
        "slowest": _ns(good[-1]) if good else 0,
        "rps": len(calls) / run.seconds if run.seconds else 0.0,
        "errorDistribution": dict(Counter(call.error for call in calls if call.error)),
        "statusCodeDistribution": dict(Counter(call.status for call in calls)),
        "latencyDistribution": [
            {"percentage": p, "latency": _ns(percentile(good, p))} for p in PERCENTAGES if good
        ],
        "details": [_detail(run, call) for call in calls[:MAX_DETAILS]],
        "grace": _own(run, load),
    }


def _own(run: LoadRun, load: Load) -> dict[str, Any]:
    calls = run.calls
    failed = [call for call in calls if call.error]
    answered = [(call, call.server) for call in calls if call.server is not None]
    invalid = invalid_because(run)
    return {
        "valid": invalid is None,
        "invalid_because": invalid,
        "processes": run.processes,
        "began": run.began.timestamp(),  # `date` has whole seconds only
        "offered_rps": load.rate if isinstance(load, OpenLoop) else None,
        "seed": load.seed if isinstance(load, OpenLoop) else None,
        "warm_up_calls": run.warm_up_calls,  # counted nowhere else
        "ok": sum(call.status == "OK" for call in calls),
        "failed": len(failed),
        "withdrawn": sum(call.withdrawn for call in calls),
        "reasons": dict(Counter(call.reason or "none given" for call in failed)),
        "ms": {
            "lateness": _ms(call.lateness for call in calls),
            "latency_ok": _ms(call.latency for call in calls if call.status == "OK"),
            "latency_failed": _ms(call.latency for call in failed),
            **{
                name: _ms(getattr(server, name) / 1e6 for _, server in answered)
                for name in ("queue", *STAGES)
            },
            # Neither waiting nor stages: the gRPC layers of client and server, the network between
            # them, and the client's lateness.
            "overhead": _ms(call.latency - sum(server) / 1e6 for call, server in answered),
        },
    }


def _detail(run: LoadRun, call: Call) -> dict[str, Any]:
    ended = run.began.astimezone(UTC) + timedelta(seconds=call.ended)
    return {
        "timestamp": ended.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "latency": _ns(call.latency),
        "error": call.error,
        "status": call.status,
    }


def _ms(seconds: Iterable[float]) -> dict[str, float] | None:
    ascending = sorted(seconds)
    if not ascending:
        return None
    quantiles = {f"p{p:g}": percentile(ascending, p) for p in (50, 90, 99, 99.9)}
    quantiles["max"] = ascending[-1]
    return {name: round(value * 1e3, 3) for name, value in quantiles.items()}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


Result = Mapping[str, Any]
"""What `load_result` returns."""

_PERCENTAGES = (50, 90, 95, 99)
_HEADINGS = (
    "offered/s", "answered OK/s", "calls", "OK", "failed", "withdrawn",
    *(f"P{percentage} ms" for percentage in _PERCENTAGES), "slowest ms", "late ms",
)  # fmt: skip


def offered(result: Result) -> str:
    """Return the calls a second. A closed loop offers as many as it can make."""
    rate = result["grace"]["offered_rps"] or result["rps"]
    return f"{round(float(rate), 1):g}"


def load_report(results: Sequence[Result]) -> str:
    """Return tables of latencies, of failures, and of where the time went."""
    parts = [
        f"Commit {commit()}. Client on {machine()}. Only calls that ended OK have a latency.\n",
        markdown_table(_HEADINGS, map(_cells, results)),
        *(
            f"{offered(each)} calls/s: not valid: {fault}.\n"
            for each in results
            if (fault := each["grace"]["invalid_because"])
        ),
    ]
    counts = [(offered(each), each["grace"]["reasons"]) for each in results]
    if reasons := sorted({name for _, own in counts for name in own}):
        rows = [[rate, *(f"{own.get(n, 0):,}" for n in reasons)] for rate, own in counts]
        parts += ["Failed calls by reason:\n", markdown_table(("offered/s", *reasons), rows)]
    names = ("queue", *STAGES, "overhead")
    answered = [(each, each["grace"]["ms"]) for each in results if each["grace"]["ok"]]
    if answered:
        medians = [[offered(x), *(f"{ms[n]['p50']:.2f}" for n in names)] for x, ms in answered]
        parts += [
            "Where the time went, by the replies' timings: medians in ms.\n",
            markdown_table(("offered/s", *names), medians),
        ]
    return "\n".join(parts)


def _cells(result: Result) -> list[str]:
    own, seconds = result["grace"], result["total"] / 1e9
    latency = {each["percentage"]: each["latency"] for each in result["latencyDistribution"]}
    shown = [f"{latency[p] / 1e6:.1f}" if latency else "-" for p in _PERCENTAGES]
    counts = [
        f"{count:,}" for count in (result["count"], own["ok"], own["failed"], own["withdrawn"])
    ]
    rates = [offered(result), f"{own['ok'] / seconds if seconds else 0:,.1f}"]
    late = own["ms"]["lateness"]
    slowest = f"{result['slowest'] / 1e6:.1f}"
    return [*rates, *counts, *shown, slowest, "-" if late is None else f"{late['p99']:.1f}"]
