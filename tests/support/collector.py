"""A collector of OpenTelemetry traces: a gRPC server that decodes what exporters send it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass
class Collector:
    """The spans that came, and the resource attributes of the last export."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, str] = field(default_factory=dict)

    def trace(self, trace_id: str) -> dict[str, Span]:
        """Return the spans of a trace, by name."""
        return {span.name: span for span in list(self.spans) if span.trace_id.hex() == trace_id}


def attributes(span: Span) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in span.attributes
    }


@contextmanager
def collector() -> Iterator[Collector]:
    found, lock = Collector(), threading.Lock()

    def export(request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:
        with lock:
            for resource in request.resource_spans:
                given = resource.resource.attributes
                found.resource = {each.key: each.value.string_value for each in given}
                for scope in resource.scope_spans:
                    found.spans.extend(scope.spans)
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Export": method})
    server.add_generic_rpc_handlers((handlers,))
    found.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()
