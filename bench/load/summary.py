"""The part of a load's result that a report shows, read from our client's file or from ghz's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grace.bench.load.calls import STAGES
from grace.bench.load.result import percentile, read_result
from grace.configs.errors import InputError

PERCENTAGES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Point:
    """One call: the second in which it was made, from the load's first call on, and its latency."""

    second: float
    latency_ms: float
    ok: bool


@dataclass(frozen=True, slots=True)
class RunSummary:
    """latency_ms   of OK calls by percentage; empty if there are none
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
    points: tuple[Point, ...]

    @property
    def answered_per_second(self) -> float:
        return self.ok / self.seconds if self.seconds else 0.0

    @property
    def title(self) -> str:
        return f"{self.offered:g} calls/s offered, {self.answered_per_second:,.0f}/s answered OK"


def read_summary(path: Path) -> RunSummary:
    try:
        result = read_result(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no result of a load: {error}") from None
    try:
        return _summary(result)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not in ghz's JSON schema ({error!r}); write it with --format json"
        ) from None


def _summary(result: Mapping[str, Any]) -> RunSummary:
    own: Mapping[str, Any] = result.get("grace") or {}
    measured: Mapping[str, Any] = own.get("ms", {})
    details = result["details"] or []
    statuses: Mapping[str, int] = result["statusCodeDistribution"]
    count, ok = result["count"], statuses.get("OK", 0)
    # ghz cancels what is under way at its end, and no server answers with Canceled.
    withdrawn = own.get("withdrawn", statuses.get("Canceled", 0))
    failures = {name: n for name, n in statuses.items() if name not in ("OK", "Canceled")}
    good = sorted(call["latency"] / 1e6 for call in details if call["status"] == "OK")
    # A closed loop offers what it can; so does ghz without --rps.
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
        latency_ms={p: percentile(good, p) for p in PERCENTAGES} if good else {},
        slowest_ms=result["slowest"] / 1e6,
        reasons=own.get("reasons", failures),
        stages_ms={name: measured[name]["p50"] for name in parts if measured.get(name)},
        late_ms=measured["lateness"]["p99"] if measured.get("lateness") else None,
        invalid_because=own.get("invalid_because"),
        points=_points(details),
    )


def _points(details: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    begins = [
        datetime.fromisoformat(call["timestamp"]).timestamp() - call["latency"] / 1e9
        for call in details
    ]
    first = min(begins, default=0.0)
    return tuple(
        Point(begin - first, call["latency"] / 1e6, call["status"] == "OK")
        for begin, call in zip(begins, details, strict=True)
    )
