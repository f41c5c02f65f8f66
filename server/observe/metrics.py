"""Every metric of the service. Times are in seconds.

Counters conserve: every call that reached the service is in `grace_requests_total` once, and if it
was not OK, in `grace_request_failures_total` once. No label holds an ad, user or request id.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from grace.index.forms.components import components_of
from grace.index.snapshot import Snapshot, creation_time
from grace.server.ad_updates import PUT_RESULTS, UPDATE_RESULTS, PutResult, UpdateResult
from grace.server.errors import STATUS_OF, ServiceError
from grace.server.messages import PRIORITY_NAMES, STAGE_NAMES, AnsweredBatch, Span, queue_seconds
from grace.server.server_state import Phase, ServerState

# Denser where a request's time usually lies.
_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5),
)
_APPLY_SECONDS = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_ADS = (0, 1, 3, 10, 30, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_SHARES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
_RESULTS = ("ok", "failed")

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)
_Label = TypeVar("_Label", bound=str)


class Metrics:
    """All metrics, on their own registry. Any thread may record: it is fast."""

    def __init__(self, state: ServerState, device: torch.device) -> None:
        self.registry = CollectorRegistry()
        self._make_counters()
        self._make_histograms()
        self._make_gauges(state, device)
        ProcessCollector(registry=self.registry)

    def ended(self, seconds: float, slack: float | None, error: ServiceError | None) -> None:
        """A call has ended: `seconds` after it came in, `slack` before its deadline, if any."""
        if error is None:
            self._requests["OK"].inc()
            self._request_seconds.observe(seconds)
            if slack is not None:
                self._slack_seconds.observe(max(0.0, slack))
        else:
            self._requests[error.code.name].inc()
            self._failures[error.reason].inc()

    def batch_done(self, answered: AnsweredBatch, spans: Sequence[Span]) -> None:
        self._batch_size.observe(len(answered.input.batch.requests))
        for span in spans:
            self._stage_seconds[span.stage].observe(span.end - span.begin)
        counts = answered.counts
        self._generated.inc(int(counts.generated.sum()))
        self._returned.inc(int(counts.returned.sum()))
        self._sids.inc(int(counts.sids.sum()))
        self._wasted.inc(int(counts.wasted.sum()))
        self._degraded.inc(sum(answer.request.degraded for answer in answered.answers))
        self._filter.labels("stopped").inc(int(counts.stopped.sum()))
        self._filter.labels("excluded").inc(int(counts.excluded.sum()))
        self._filter.labels("limited").inc(int(counts.limited.sum()))
        components = components_of(answered.input.batch.pair.snapshot.schema)
        for component, count in zip(components, counts.failed.sum(axis=0).tolist(), strict=True):
            self._filter.labels(component.label).inc(count)
        passed = counts.generated - counts.failed.sum(axis=1)
        shares = zip(passed.tolist(), counts.generated.tolist(), strict=True)
        for histogram, values in (
            (self._queue_seconds, queue_seconds(answered.input.requests, spans)),
            (self._ads, counts.returned.tolist()),
            (self._pass_rate, [fit / generated for fit, generated in shares if generated]),
        ):
            for value in values:
                histogram.observe(value)

    def updated(self, result: UpdateResult, count: int = 1) -> None:
        self._updates[result].inc(count)

    def puts_read(self, result: PutResult, count: int) -> None:
        self._puts[result].inc(count)

    def credentials_loaded(self, setting: str, result: str) -> None:
        """Count a change of a setting's files: `ok` if they are in use, or else `failed`."""
        self._credentials.labels(setting, result).inc()

    def serves(self, snapshot: Snapshot) -> None:
        facts = snapshot.facts
        created = creation_time(facts.created_at)
        assert created is not None  # checked with the manifest
        since = created.timestamp()
        self._version.set(facts.version)
        self._age.set_function(lambda: time.time() - since)
        for component in components_of(snapshot.schema):
            self._filter.labels(component.label)

    def _make_counters(self) -> None:
        counter = partial(Counter, registry=self.registry)
        codes = {"OK", *(status.name for status in STATUS_OF.values())}
        means = "Calls that ended, by status."
        self._requests = _by(counter("grace_requests", means, ["code"]), codes)
        means = "Calls that did not end with OK, by reason."
        self._failures = _by(counter("grace_request_failures", means, ["reason"]), STATUS_OF)
        means = "Calls reset because their callers did not read the replies."
        self.unread = counter("grace_replies_unread", means)
        self._generated = counter("grace_ads_generated", "Ads of generated SIDs.")
        self._returned = counter("grace_ads_returned", "Ads in replies.")
        self._sids = counter("grace_sids_generated", "Generated SIDs.")
        means = "Generated SIDs with no ad that passes targeting."
        self._wasted = counter("grace_sids_wasted", means)
        means = "Generated ads left out, by the first test that they failed; limited: matched ads "
        self._filter = counter("grace_ads_filtered", f"{means}that at_most left out.", ["by"])
        _by(self._filter, ("attributes", "stopped", "excluded", "limited"))
        means = "Loads of a snapshot or a checkpoint, by result."
        self.loads = _by(counter("grace_snapshot_load", means, ["result"]), _RESULTS)
        means = (
            "Updates of ads, by result; repeated: the number was in force before; part: others of "
        )
        means += "the update were missing."
        self._updates = _by(counter("grace_updates", means, ["result"]), UPDATE_RESULTS)
        means = "Puts of ads in updates, by result."
        self._puts = _by(counter("grace_puts", means, ["result"]), PUT_RESULTS)
        means = "Attempts to serve puts and removals that failed; the old ads are served on."
        self.apply_failures = counter("grace_apply_failures", means)
        means = "Changes of certificate files; failed: the old content stays in use."
        self._credentials = counter("grace_credentials_load", means, ["setting", "result"])
        for setting, result in product(("listen.tls", "admin.tls"), _RESULTS):
            self._credentials.labels(setting, result)
        means = "Answers from a smaller beam profile than the request asked for."
        self._degraded = counter("grace_degraded", means)
        means = "Requests refused or displaced for lack of room in the queue, by priority."
        self.shed = _by(counter("grace_shed", means, ["priority"]), PRIORITY_NAMES)

    def _make_histograms(self) -> None:
        histogram = partial(Histogram, registry=self.registry)
        seconds = partial(histogram, buckets=_SECONDS)
        means = "Time to make and serve a snapshot with puts and removals that waited."
        self.apply_seconds = histogram("grace_apply_seconds", means, buckets=_APPLY_SECONDS)
        means = "Time from call to reply, of calls answered OK."
        self._request_seconds = seconds("grace_request_duration_seconds", means)
        means = "Time left until the deadline when a reply was made."
        self._slack_seconds = seconds("grace_deadline_slack_seconds", means)
        means = "Time that a request of a batch waited."
        self._queue_seconds = seconds("grace_queue_duration_seconds", means)
        stages = seconds(
            "grace_stage_duration_seconds", "Time that a stage worked on a batch.", ["stage"]
        )
        self._stage_seconds = _by(stages, STAGE_NAMES)
        self._batch_size = histogram("grace_batch_size", "Requests in a batch.", buckets=_BATCH)
        self._ads = histogram("grace_ads_per_request", "Ads in a reply.", buckets=_ADS)
        means = "Share of a request's generated ads that pass targeting."
        self._pass_rate = histogram("grace_ad_pass_rate", means, buckets=_SHARES)

    def _make_gauges(self, state: ServerState, device: torch.device) -> None:
        gauge = partial(Gauge, registry=self.registry)
        self._version = gauge("grace_snapshot_version", "Version of the served snapshot.")
        self._age = gauge("grace_snapshot_age_seconds", "Time since that snapshot was built.")
        means = "1 while a rollback pins the server to a version."
        self.pinned = gauge("grace_pinned", means)

        def read(name: str, means: str, value: Callable[[], float]) -> None:
            gauge(name, means).set_function(value)

        means = "Sequence number of the last update of ads that is in force."
        read("grace_update_seq", means, lambda: state.update_sequence)
        means = "Sequence number of the last update whose puts and removals are served."
        read("grace_update_visible_seq", means, lambda: state.visible_sequence)
        means = "Ads of the served snapshot that come from puts."
        read("grace_ads_put", means, lambda: len(state.shown.put))
        means = "Kept puts that the served snapshot cannot take."
        read("grace_puts_unusable", means, lambda: len(state.shown.refused))
        means = "Ads of the served snapshot that are stopped."
        read("grace_stopped_ads", means, lambda: state.ads_stopped)
        means = "Calls whose replies have not been sent completely."
        read("grace_open_calls", means, lambda: state.open_calls)
        read("grace_queue_depth", "Requests that wait for a batch.", lambda: state.waiting)
        means = "Requests that were taken and have not ended."
        read("grace_inflight_requests", means, lambda: state.in_flight)
        means = "Share that admission adds to its predictions because answers came late."
        read("grace_admission_margin", means, lambda: state.margin)
        means = "1 while the server refuses requests of this priority that would wait too long."
        shedding = gauge("grace_shedding", means, ["priority"])
        for name in PRIORITY_NAMES:
            shedding.labels(name).set_function(partial(state.sheds, name))
        means = "1 while health says SERVING."
        read("grace_ready", means, lambda: state.phase == Phase.SERVING)
        means = "Worst delay of the event loop in the last seconds."
        read("grace_event_loop_lag_seconds", means, state.loop_lag.worst)
        if device.type == "cuda":
            means = "GPU memory that tensors hold; with a GPU only."
            read("grace_gpu_memory_bytes", means, lambda: torch.cuda.memory_allocated(device))
            means = (
                "Numbers that additions in fp8 clipped since the model was loaded; with a GPU only."
            )
            read("grace_fp8_clipped_numbers", means, lambda: state.fp8_clipped)


def _by(metric: _Metric, labels: Iterable[_Label]) -> dict[_Label, _Metric]:
    """Return the metric of each value of its label. All exist from the start."""
    return {label: metric.labels(label) for label in labels}
