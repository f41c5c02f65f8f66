"""Every metric of the service; docs/operations.md lists them. Times are in seconds.

Counters conserve: every call that reached the service is in `grace_requests_total` once, and if it
was not OK, in `grace_request_failures_total` once. No label holds an ad, user or request id.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from grace.index.snapshot import Snapshot
from grace.server.errors import ServiceError
from grace.server.messages import STAGE_NAMES, AnsweredBatch, Span, queue_seconds
from grace.server.observe.batch_histogram import BatchHistogram
from grace.server.observe.loop_lag import LoopLag
from grace.server.server_state import Phase, ServerState

__all__ = ["REASONS", "Metric", "Metrics"]

REASONS = (
    *("malformed", "too_large", "invalid_field", "wrong_model", "wrong_sid_space"),
    *("too_many_calls", "queue_full", "displaced", "deadline_unmeetable", "deadline_exceeded"),
    *("cancelled", "not_ready", "draining", "internal", "not_finite", "stage_died"),
)

_CODES = (
    *("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"),
    *("DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE", "INTERNAL"),
)

# Denser where a request's time usually lies.
_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5),
)
_ADS = (0, 1, 3, 10, 30, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_SHARES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table in docs/operations.md."""

    name: str
    kind: str
    labels: tuple[str, ...]
    means: str


class Metrics:
    """On a registry of their own. Any thread may call the methods; each takes microseconds."""

    def __init__(self, state: ServerState, lag: LoopLag, device: torch.device) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Metric] = []
        self._make_counters()
        self._make_histograms()
        self._make_gauges(state, lag, device)

    def ended(self, seconds: float, slack: float | None, error: ServiceError | None) -> None:
        """A call has ended: `seconds` after it came in, `slack` before its deadline, if any."""
        if error is None:
            self._ok.inc()
            self._request_seconds.observe(seconds)
            if slack is not None:
                self._slack_seconds.observe(max(0.0, slack))
        else:
            self._requests.labels(error.code.name).inc()
            self._failures.labels(error.reason).inc()

    def batch_done(self, answered: AnsweredBatch, spans: Sequence[Span]) -> None:
        self._batch_size.observe(len(answered.input.batch.requests))
        for span in spans:
            self._stage_seconds[span.stage].observe(span.end - span.begin)
        self._queue_seconds.observe_all(queue_seconds(answered.input.requests, spans))
        counts = answered.counts
        self._generated.inc(int(counts.generated.sum()))
        self._returned.inc(int(counts.returned.sum()))
        schema = answered.input.batch.pair.snapshot.schema
        self._filtered["attributes"].inc(int(counts.attributes.sum()))
        self._filtered["paused"].inc(int(counts.paused.sum()))
        self._filtered["denied"].inc(int(counts.denied.sum()))
        for target_set, count in zip(schema.sets, counts.sets.sum(axis=0).tolist(), strict=True):
            self._filter.labels(f"set:{target_set.name}").inc(count)
        passed = counts.generated - counts.attributes - counts.sets.sum(axis=1)
        shares = zip(passed.tolist(), counts.generated.tolist(), strict=True)
        self._ads.observe_all(counts.returned.tolist())
        self._pass_rate.observe_all([fit / generated for fit, generated in shares if generated])

    def loaded(self, result: str) -> None:
        """A snapshot was loaded, `ok`, or could not be, `failed`."""
        self._loads.labels(result).inc()

    def serves(self, snapshot: Snapshot) -> None:
        facts = snapshot.facts
        created = datetime.fromisoformat(facts.created_at).timestamp()
        self._version.set(facts.version)
        self._age.set_function(lambda: time.time() - created)
        for target_set in snapshot.schema.sets:
            self._filter.labels(f"set:{target_set.name}")

    def _make_counters(self) -> None:
        self._requests = self._counter("grace_requests", "Calls that ended, by status.", "code")
        self._failures = self._counter(
            "grace_request_failures", "Calls that did not end with OK, by reason.", "reason"
        )
        self._generated = self._counter("grace_ads_generated", "Ads of generated SIDs.")
        self._returned = self._counter("grace_ads_returned", "Ads in replies.")
        self._filter = self._counter(
            "grace_ads_filtered", "Generated ads not for the user, by the first test failed.", "by"
        )
        self._loads = self._counter("grace_snapshot_load", "Snapshots loaded, by result.", "result")
        self._ok = self._requests.labels("OK")
        for code in _CODES:
            self._requests.labels(code)
        for reason in REASONS:
            self._failures.labels(reason)
        for result in ("ok", "failed"):
            self._loads.labels(result)
        names = ("attributes", "paused", "denied")
        self._filtered = {name: self._filter.labels(name) for name in names}

    def _make_histograms(self) -> None:
        self._request_seconds = self._histogram(
            "grace_request_duration_seconds", "From call to reply, of calls answered OK.", _SECONDS
        )
        self._queue_seconds = self._batch_histogram(
            "grace_queue_duration_seconds", "All waiting of a request in a batch.", _SECONDS
        )
        stages = self._histogram(
            "grace_stage_duration_seconds", "Work of a stage on a batch.", _SECONDS, "stage"
        )
        self._stage_seconds = {stage: stages.labels(stage) for stage in STAGE_NAMES}
        self._batch_size = self._histogram("grace_batch_size", "Requests in a batch.", _BATCH)
        self._ads = self._batch_histogram("grace_ads_per_request", "Ads in a reply.", _ADS)
        self._pass_rate = self._batch_histogram(
            "grace_ad_pass_rate", "Share of a request's generated ads that fit the user.", _SHARES
        )
        self._slack_seconds = self._histogram(
            "grace_deadline_slack_seconds", "Left of the deadline when a reply was made.", _SECONDS
        )

    def _make_gauges(self, state: ServerState, lag: LoopLag, device: torch.device) -> None:
        self._gauge(
            "grace_open_calls",
            "Calls whose replies have not been sent to the end.",
            lambda: state.open_calls,
        )
        self._gauge("grace_queue_depth", "Requests that wait for a batch.", lambda: state.waiting)
        self._gauge(
            "grace_inflight_requests", "Requests taken in and not ended.", lambda: state.in_flight
        )
        self._gauge(
            "grace_ready", "1 while health says SERVING.", lambda: state.phase == Phase.SERVING
        )
        self._gauge("grace_event_loop_lag_seconds", "Worst of the last seconds.", lag.worst)
        self._version = self._gauge("grace_snapshot_version", "Of the snapshot that serves.")
        self._age = self._gauge("grace_snapshot_age_seconds", "Since that snapshot was built.")
        if device.type == "cuda":
            self._gauge(
                "grace_gpu_memory_bytes",
                "Memory that tensors hold; with a GPU only.",
                lambda: torch.cuda.memory_allocated(device),
            )

    def _counter(self, name: str, means: str, *labels: str) -> Counter:
        self.described.append(Metric(f"{name}_total", "counter", labels, means))
        return Counter(name, means, labels, registry=self.registry)

    def _histogram(
        self, name: str, means: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        self.described.append(Metric(name, "histogram", labels, means))
        return Histogram(name, means, labels, buckets=buckets, registry=self.registry)

    def _batch_histogram(self, name: str, means: str, bounds: Sequence[float]) -> BatchHistogram:
        self.described.append(Metric(name, "histogram", (), means))
        return BatchHistogram(name, means, bounds, self.registry)

    def _gauge(self, name: str, means: str, read: Callable[[], float] | None = None) -> Gauge:
        self.described.append(Metric(name, "gauge", (), means))
        gauge = Gauge(name, means, registry=self.registry)
        if read is not None:
            gauge.set_function(read)
        return gauge
