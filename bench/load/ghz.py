"""A load's result in ghz's JSON schema, with our own numbers in addition under `grace`.

As in ghz, durations are nanoseconds, a detail's timestamp is the end of its call, and the average
and the rate count every call; all other latencies are of calls that ended OK. Unlike ghz's,
latencies count from when a call was due, and a call that the client withdrew is no error. A summary
also finds the calls that ghz withdrew.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from grace.bench.load.client import STAGES, Call, Load, LoadRun, OpenLoop
from grace.configs.errors import InputError
from grace.server.errors import draining, not_ready

PERCENTAGES = (10, 25, 50, 75, 90, 95, 99)
SHOWN_PERCENTAGES = (50, 90, 95, 99)
MAX_DETAILS = 1_000_000  # ghz's limit, too
CALL = "grace.v1.AdsRetrieval.Retrieve"

LATENESS_LIMIT = 0.005
LATENESS_SHARE = 0.1

REQUEST_FAULTS = ("InvalidArgument", "FailedPrecondition")
"""Statuses by which a server refuses the contents of a request."""

GHZ_CLOSED = ("use of closed network connection", "client connection is closing")
"""Texts in the errors of calls that were open when ghz closed its connections at its end."""


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
    # A server that refuses a call gives a reason.
    lost = [call.ended for call in calls if call.status == "Unavailable" and not call.reason]
    failed = [call for call in calls if call.error]
    fault = _fault_of_calls(
        Counter(call.status for call in calls if call.status == "OK" or call.error),
        len(calls),
        len(lost),
        f", the first {min(lost):.1f} s after the begin" if lost else "",
        Counter(call.reason or call.status for call in failed),
    )
    if fault is not None:
        return fault
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


def _fault_of_calls(
    ended: Mapping[str, int], count: int, lost: int, first: str, reasons: Mapping[str, int]
) -> str | None:
    """Return why a run whose calls ended in these ways measures nothing, or None.

    ended    the calls by status, without those that the client withdrew
    lost     those that found no server or lost it
    first    when the first one did, if that is known
    reasons  the failed calls by reason, or by status
    """
    if not count:
        return "no call was made; give a higher rate or more seconds"
    if lost:
        return (
            f"the server went away: {lost:,} of {count:,} calls found no server or lost "
            f"it{first}; its log has the cause"
        )
    if ended and set(ended) <= set(REQUEST_FAULTS):
        reason, most = max(reasons.items(), key=lambda item: item[1])
        return (
            f"the server refused every request, {most:,} of {count:,} with {reason}; give "
            "requests for its catalogue and its model"
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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The part of one result, of our client or of ghz, that a report shows.

    latency_ms   of OK calls by percentage; empty if there are none
    reasons      failures by the server's reason, or by status if the file has no reasons
    stages_ms    P50 of queue, each stage and overhead; empty if the file has none
    late_ms      P99 of the client's lateness, if the file has it
    """

    client: str
    offered: float
    seconds: float
    count: int
    ok: int
    failed: int
    withdrawn: int
    latency_ms: Mapping[int, float]
    slowest_ms: float
    reasons: Mapping[str, int]
    stages_ms: Mapping[str, float]
    late_ms: float | None
    invalid_because: str | None

    @property
    def answered_per_second(self) -> float:
        return self.ok / self.seconds if self.seconds else 0.0


def read_summary(path: Path) -> RunSummary:
    """Read the result file of our client or of ghz."""
    try:
        return summary_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not the result of a load: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not in ghz's JSON schema ({error!r}); write it with --format json"
        ) from None


def summary_of(result: Mapping[str, Any]) -> RunSummary:
    own: Mapping[str, Any] = result.get("grace") or {}
    measured: Mapping[str, Any] = own.get("ms", {})
    details = result["details"] or []
    statuses: Mapping[str, int] = result["statusCodeDistribution"]
    count, ok = result["count"], statuses.get("OK", 0)
    if own:
        withdrawn, reasons, invalid = own["withdrawn"], own["reasons"], own["invalid_because"]
    else:
        withdrawn, reasons, invalid = _ends_of_ghz(statuses, result.get("errorDistribution") or {})
    good = sorted(call["latency"] / 1e6 for call in details if call["status"] == "OK")
    # A closed loop, and ghz without --rps, offer as many calls as they can make.
    offered = own.get("offered_rps") or result["options"].get("rps") or result["rps"]
    parts = ("queue", *STAGES, "overhead")
    return RunSummary(
        client="ours" if own else "ghz",
        offered=round(float(offered), 1),
        seconds=result["total"] / 1e9,
        count=count,
        ok=ok,
        failed=count - ok - withdrawn,
        withdrawn=withdrawn,
        latency_ms={p: percentile(good, p) for p in SHOWN_PERCENTAGES} if good else {},
        slowest_ms=result["slowest"] / 1e6,
        reasons=reasons,
        stages_ms={name: measured[name]["p50"] for name in parts if measured.get(name)},
        late_ms=measured["lateness"]["p99"] if measured.get("lateness") else None,
        invalid_because=invalid,
    )


def _ends_of_ghz(
    statuses: Mapping[str, int], errors: Mapping[str, int]
) -> tuple[int, Mapping[str, int], str | None]:
    """Return the number of calls that ghz withdrew at its end, the failed ones by status, and why
    the run is not valid.

    A withdrawn call is Canceled, a status that no server sends, or has the error of a connection
    that ghz itself closed. The file has no trailers, so a refusal is known by its text.
    """
    closed = Counter[str]()
    lost = 0
    refusals = (not_ready().text, draining().text)
    for text, number in errors.items():
        found = re.search(r"code = (\w+) ", text)
        status = found[1] if found else ""
        if any(sign in text for sign in GHZ_CLOSED):
            closed[status] += number
        elif status == "Unavailable" and not any(each in text for each in refusals):
            lost += number
    closed["Canceled"] = statuses.get("Canceled", 0)
    ended = +(Counter(statuses) - closed)
    failed = {status: number for status, number in ended.items() if status != "OK"}
    fault = _fault_of_calls(ended, sum(statuses.values()), lost, "", failed)
    return closed.total(), failed, fault
