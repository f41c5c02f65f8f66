"""Export of traced calls to a collector by OTLP over gRPC. It needs the extra `traces`.

A trace has a span for the call, and below it one for the queue and one for each stage. The time
between two stages, in which a batch waits, has no span.
"""

import time
from collections.abc import Iterator, Sequence

from grpc import StatusCode
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags
from opentelemetry.trace import StatusCode as SpanStatus

from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.observe.traces import TracedCall, TraceIds

EXPORT_SECONDS = 5.0

_SERVICE = DESCRIPTOR.services_by_name["AdsRetrieval"].full_name
_SCOPE = InstrumentationScope("grace.server")
_FAULTS = frozenset({StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})
"""Statuses that OpenTelemetry takes for an error of the server."""


class OtlpExporter:
    """`endpoint` is http://HOST:PORT, or https:// with a certificate that the system trusts."""

    def __init__(self, endpoint: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME may add attributes of this server.
        self._resource = Resource({"service.name": "grace"}).merge(OTELResourceDetector().detect())

    def export(self, calls: Sequence[TracedCall]) -> bool:
        # The clock of the spans has no date; the two may drift, so compare them each time.
        since_epoch = time.time_ns() - time.perf_counter_ns()
        spans = [span for call in calls for span in self._spans(call, since_epoch)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()

    def _spans(self, call: TracedCall, since_epoch: int) -> Iterator[ReadableSpan]:
        def moment(seconds: float) -> int:
            return since_epoch + round(seconds * 1e9)

        context = _context(call.ids.trace, call.ids.span)
        caller = call.ids.caller
        yield ReadableSpan(
            name=f"{_SERVICE}/Retrieve",
            context=context,
            parent=_context(call.ids.trace, caller, is_remote=True) if caller else None,
            resource=self._resource,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": _SERVICE,
                "rpc.method": "Retrieve",
                "rpc.grpc.status_code": int(call.code.value[0]),
                **call.attributes,
            },
            kind=SpanKind.SERVER,
            instrumentation_scope=_SCOPE,
            status=Status(SpanStatus.ERROR if call.code in _FAULTS else SpanStatus.UNSET),
            start_time=moment(call.arrived),
            end_time=moment(call.ended),
        )
        parts: list[tuple[str, float, float]] = []
        if call.queued is not None and call.spans:
            parts.append(("queue", call.queued, max(call.queued, call.spans[0].begin)))
        parts += [(span.stage, span.begin, span.end) for span in call.spans]
        for number, (name, begin, end) in enumerate(parts, 1):
            yield ReadableSpan(
                name=name,
                context=_context(call.ids.trace, _below(call.ids, number)),
                parent=context,
                resource=self._resource,
                kind=SpanKind.INTERNAL,
                instrumentation_scope=_SCOPE,
                start_time=moment(begin),
                end_time=moment(end),
            )


def _context(trace: int, span: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace, span, is_remote, TraceFlags(TraceFlags.SAMPLED))


def _below(ids: TraceIds, number: int) -> int:
    """Return the id of the call's N-th part: ids must differ within a trace only."""
    return (ids.span + number) % (1 << 64) or (1 << 63)
