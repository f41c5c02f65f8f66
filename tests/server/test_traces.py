"""OpenTelemetry traces: what a collector gets of a real server's calls, and what is dropped."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.configs.errors import ConfigError
from grace.configs.serving import TracesConfig
from grace.server.messages import STAGE_NAMES
from grace.server.observe.traces import TracedCall, TraceIds, Traces
from support.collector import Collector, attributes, collector
from support.command import run_grace
from support.retrieve_calls import METHOD, counted_calls, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER_TRACE = "1af7651916cd43dd8448eb211c80319c"
CALL = TracedCall(TraceIds(1, 2, 0), 0.0, 1.0, grpc.StatusCode.OK, None, (), {})
ROOT = "grace.v1.AdsRetrieval/Retrieve"


def test_a_call_is_traced_if_its_caller_says_so_and_no_other_call_is() -> None:
    traces = Traces(TracesConfig(sample=0.0), Recorder(), into(Counter()))
    sampled = traces.ids_of(f"00-{TRACE}-{SPAN}-01")
    assert sampled is not None
    assert (sampled.trace, sampled.caller) == (int(TRACE, 16), int(SPAN, 16))
    assert traces.ids_of(f"cc-{TRACE}-{SPAN}-03-later-versions-say-more") is not None
    faulty = (
        *("", f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}", f"ff-{TRACE}-{SPAN}-01", "é" * 55),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-more"),
    )
    assert [header for header in faulty if traces.ids_of(header) is not None] == []
    traces.close(30)


def test_a_server_that_samples_by_itself_traces_its_share() -> None:
    config = TracesConfig(sample=1.0, follow_callers=False)
    traces = Traces(config, Recorder(), into(Counter()))
    own = [traces.ids_of(header) for header in ("", f"00-{TRACE}-{SPAN}-00")]
    assert [ids is not None and ids.caller for ids in own] == [0, 0]
    assert len({ids.trace for ids in own if ids is not None} - {int(TRACE, 16)}) == 2
    traces.close(30)


class Recorder:
    """An exporter that waits until it may go on, and refuses or raises on demand."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.exported: list[TracedCall] = []
        self.fault: Exception | None = None
        self.closed = False

    def export(self, calls: Sequence[TracedCall]) -> bool:
        self.goes_on.wait(60)
        if self.fault is not None:
            raise self.fault
        self.exported += calls
        return True

    def close(self) -> None:
        self.closed = True


def into(counts: Counter[str]) -> Callable[[str, int], None]:
    """Return a function that adds a number to a result's count."""

    def count(result: str, number: int) -> None:
        counts[result] += number

    return count


def test_while_a_collector_hangs_no_call_waits_and_those_beyond_the_queue_are_counted() -> None:
    exporter, counts = Recorder(), Counter[str]()
    exporter.goes_on.clear()
    traces = Traces(TracesConfig(most_waiting=63), exporter, into(counts), gather_seconds=0.001)
    begin = time.monotonic()
    for _ in range(1111):
        traces.ended(CALL)
    assert time.monotonic() - begin < 30
    assert counts["dropped"] >= 1111 - 2 * 63
    exporter.goes_on.set()
    traces.close(30)
    assert counts == {"dropped": counts["dropped"], "exported": len(exporter.exported)}
    assert counts.total() == 1111
    assert exporter.closed


def test_calls_that_end_during_an_export_wait_for_the_next_second() -> None:
    """So callers who have all their calls traced cost at most `most_waiting` traces a second."""

    class Chased(Recorder):
        def export(self, calls: Sequence[TracedCall]) -> bool:
            for _ in range(63):
                traces.ended(CALL)
            return super().export(calls)

    exporter = Chased()
    traces = Traces(TracesConfig(most_waiting=63), exporter, into(Counter()), gather_seconds=3600)
    traces.ended(CALL)
    traces.close(30)
    assert (len(exporter.exported), exporter.closed) == (1, True)


def test_calls_whose_export_fails_are_counted_and_the_next_ones_are_exported() -> None:
    exporter, counts = Recorder(), Counter[str]()
    traces = Traces(TracesConfig(), exporter, into(counts), gather_seconds=0.001)
    exporter.fault = RuntimeError("the collector is gone")
    traces.ended(CALL)
    wait_until(lambda: counts["failed"] == 1, "the export failed")
    exporter.fault = None
    traces.ended(CALL)
    traces.close(30)
    assert counts == {"failed": 1, "exported": 1}


@pytest.mark.parametrize("endpoint", ["localhost:4317", "http://localhost", "ftp://x:1", ""])
def test_an_endpoint_without_scheme_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"endpoint: must be http://HOST:PORT"):
        TracesConfig(endpoint=endpoint)


@pytest.mark.subprocess
@pytest.mark.parametrize("front_ends", [0, 1], ids=("gRPC in the server", "in a relay"))
def test_a_collector_gets_the_caller_s_trace_with_the_queue_and_every_stage(
    serving_files: ServingFiles, front_ends: int
) -> None:
    with collector() as received:
        config = serving_files.write_config(
            f"traced-{front_ends}.yaml",
            listen={"front_ends": front_ends},
            traces={"endpoint": received.endpoint, "sample": 0.0},
        )
        with ServerProcess(config) as server:
            begun = time.time_ns()
            request = message(serving_files.requests[0], request_id="r-63")
            with grpc.insecure_channel(server.address) as channel:
                method: Any = channel.unary_unary(METHOD)
                for body, header in (
                    (request, f"00-{TRACE}-{SPAN}-01"),
                    (b"\xff", f"00-{OTHER_TRACE}-{SPAN}-01"),
                    (request, f"00-{'2' * 32}-{SPAN}-00"),
                    (request, "00-faulty"),
                ):
                    future = method.future(body, metadata=(("traceparent", header),), timeout=60)
                    future.exception()
            ended = time.time_ns()
            server.wait_until(
                lambda: server.metric("grace_traces_total", result="exported") == 2,
                "two calls are exported",
            )
            assert server.metric("grace_traces_total") == 2
            server.terminate()
            assert server.wait() == 0
    assert_traces(received, begun, ended)


def assert_traces(received: Collector, begun: int, ended: int) -> None:
    spans = received.trace(TRACE)
    assert list(spans) == [ROOT, "queue", *STAGE_NAMES]
    assert received.resource["service.name"] == "grace"
    call = spans.pop(ROOT)
    assert (call.parent_span_id.hex(), call.kind) == (SPAN, call.SPAN_KIND_SERVER)
    facts = attributes(call)
    assert facts["rpc.grpc.status_code"] == 0
    assert facts["grace.request_id"] == "r-63"
    assert facts["grace.batch_size"] == 1
    assert len({span.span_id for span in (call, *spans.values())}) == 6
    moments = [begun, call.start_time_unix_nano]
    for span in spans.values():
        assert span.parent_span_id == call.span_id
        moments += [span.start_time_unix_nano, span.end_time_unix_nano]
    moments += [call.end_time_unix_nano, ended]
    assert moments == sorted(moments)
    (faulty,) = received.trace(OTHER_TRACE).values()
    assert attributes(faulty)["grace.reason"] == "malformed"
    assert attributes(faulty)["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert {span.trace_id.hex() for span in received.spans} == {TRACE, OTHER_TRACE}


@pytest.mark.subprocess
def test_without_its_collector_a_server_answers_counts_and_ends_as_always(
    serving_files: ServingFiles,
) -> None:
    with collector() as closed:
        endpoint = closed.endpoint
    config = serving_files.write_config("alone.yaml", traces={"endpoint": endpoint, "sample": 1.0})
    with ServerProcess(config) as server:
        with counted_calls(server) as caller:
            for request in serving_files.requests[:3]:
                assert caller.call(message(request), seconds=30).ok
        server.wait_until(
            lambda: server.metric("grace_traces_total", result="failed") == 3, "three are lost"
        )
        server.terminate()
        assert server.wait() == 0


@pytest.mark.subprocess
def test_without_its_packages_a_server_with_traces_does_not_start(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    blocked = tmp_path / "opentelemetry"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("")
    config = serving_files.write_config(
        "no-packages.yaml", traces={"endpoint": "http://127.0.0.1:4317"}
    )
    done = run_grace("serve", "--config", config, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "traces.endpoint: traces need opentelemetry" in last
    assert "pip install" in last
