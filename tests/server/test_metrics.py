"""The metrics: which there are, that they agree with what happened, and the page that has them."""

import asyncio
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.bench.markdown import replaced
from grace.bench.reference_tables import metrics_table
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import STATUS_OF, invalid_field
from grace.server.messages import STAGE_NAMES, Span
from grace.server.observe.loop_lag import MOST_BEATS, LoopLag
from grace.server.observe.metrics import Metrics
from grace.server.observe.metrics_page import MetricsPage
from grace.server.server_state import Phase, ServerState
from support.server_process import wait_until
from support.serving_files import ServingFiles
from support.stage_cases import answer, request_batch


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(ServerState(), torch.device("cpu"))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    sample = metrics.registry.get_sample_value(name, labels)
    assert sample is not None, name
    return sample


def test_the_document_has_every_metric_and_no_other(repository: Path) -> None:
    document = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert replaced(document, "metrics", metrics_table()) == document, "run make fix"


def test_every_end_of_a_call_is_counted_once_and_every_failure_has_a_reason(
    metrics: Metrics,
) -> None:
    metrics.ended(0.063, 0.4, None)
    metrics.ended(0.063, None, None)
    metrics.ended(0.001, None, invalid_field("user.age", "no"))
    assert value(metrics, "grace_requests_total", code="OK") == 2
    assert value(metrics, "grace_requests_total", code="INVALID_ARGUMENT") == 1
    assert value(metrics, "grace_request_failures_total", reason="invalid_field") == 1
    assert value(metrics, "grace_request_duration_seconds_count") == 2
    assert value(metrics, "grace_deadline_slack_seconds_count") == 1


def test_every_status_and_reason_of_the_error_table_is_there_from_the_start(
    metrics: Metrics,
) -> None:
    for code in ("OK", *(status.name for status in STATUS_OF.values())):
        assert value(metrics, "grace_requests_total", code=code) == 0
    for reason in STATUS_OF:
        assert value(metrics, "grace_request_failures_total", reason=reason) == 0


def test_the_counts_of_a_batch_s_ads_add_up(
    metrics: Metrics, pair: ServingPair, serving_files: ServingFiles
) -> None:
    metrics.serves(pair.snapshot)
    requests = [{**request, "max_ads": 7} for request in serving_files.requests[:5]]
    advertisers = pair.snapshot.entities[1].ids.tolist()
    requests[0] |= {"max_ads": 1000, "at_most": {"advertiser": 1}}
    requests[1]["exclude"] = {"advertiser": {"ids": advertisers[::2]}}
    answered = answer(request_batch(pair, requests, 8))
    begin = answered.input.requests[0].arrived + 0.25
    spans = [Span(stage, begin + i, begin + i + 0.5) for i, stage in enumerate(STAGE_NAMES)]
    metrics.batch_done(answered, spans)

    counts = answered.counts
    filters = (*pair.users.labels, "stopped", "excluded")
    filtered = sum(value(metrics, "grace_ads_filtered_total", by=by) for by in filters)
    assert value(metrics, "grace_ads_generated_total") == counts.generated.sum() > 0
    assert filtered + counts.matched.sum() == counts.generated.sum()
    excluded = value(metrics, "grace_ads_filtered_total", by="excluded")
    assert excluded == counts.excluded.sum() > 0
    limited = value(metrics, "grace_ads_filtered_total", by="limited")
    assert limited == counts.limited.sum() > 0
    assert value(metrics, "grace_ads_returned_total") == counts.returned.sum() > 0
    assert value(metrics, "grace_sids_generated_total") == counts.sids.sum() > 0
    assert value(metrics, "grace_sids_wasted_total") == counts.wasted.sum()
    assert value(metrics, "grace_ads_per_request_count") == 5
    assert value(metrics, "grace_batch_size_sum") == 5
    assert value(metrics, "grace_stage_duration_seconds_sum", stage="post") == pytest.approx(0.5)
    waited = value(metrics, "grace_queue_duration_seconds_sum") / 5
    assert waited == pytest.approx(0.25 + 3 * 0.5, abs=0.2)  # before the first stage, and between
    assert value(metrics, "grace_snapshot_version") == pair.snapshot.facts.version


def test_a_blocked_event_loop_has_a_lag_that_is_forgotten_later() -> None:
    blocked_seconds = 0.3
    lag = LoopLag(window_seconds=0.2)

    async def block() -> None:
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.01)
        time.sleep(blocked_seconds)
        while lag.worst() < blocked_seconds / 2:
            await asyncio.sleep(0.01)
        while lag.worst() >= blocked_seconds / 2:  # two windows later it is forgotten
            await asyncio.sleep(0.01)
        watch.cancel()

    assert lag.worst() == 0
    asyncio.run(asyncio.wait_for(block(), 30))


@pytest.mark.parametrize("stands_still", [False, True], ids=("runs", "stands still"))
def test_only_a_loop_that_stands_still_hangs(stands_still: bool) -> None:
    hangs = threading.Event()

    async def run() -> None:
        lag = LoopLag()
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.01)
        lag.watch_for_hang(hangs.set, beat_seconds=0.1)
        if stands_still:
            assert hangs.wait(60)
        else:
            await asyncio.sleep(0.1 * (MOST_BEATS + 5))
            assert not hangs.is_set()
        watch.cancel()

    asyncio.run(run())
    if not stands_still:  # nor does a loop that has ended
        assert not hangs.wait(0.1 * (MOST_BEATS + 5))


@pytest.fixture
def state() -> ServerState:
    return ServerState()


@pytest.fixture
def page(metrics: Metrics, state: ServerState) -> Iterator[str]:
    page = MetricsPage("127.0.0.1", 0, metrics.registry, state)
    yield f"http://127.0.0.1:{page.port}"
    page.close()


def fetched(page: str, path: str) -> tuple[int, str, str]:
    """Return the status, the type and the body of a reply."""
    try:
        reply: Any = urllib.request.urlopen(page + path, timeout=30)
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        return reply.status, reply.headers["Content-Type"], reply.read().decode()


PAGES = {
    "/metrics?name=x": (200, r'grace_requests_total\{code="OK"\} 0.0'),
    "/metrics": (200, "process_resident_memory_bytes [1-9].*"),
    "/metrics?": (200, "process_open_fds [1-9].*"),
    "/timeline": (200, '.*"otherData": {"batches": 0, "left_out": 0}.*'),
    "/metricsx": (404, ".*there are /metrics, /healthz and /timeline.*"),
    "": (404, ".*there are /metrics, /healthz and /timeline.*"),
}


@pytest.mark.parametrize("path", PAGES)
def test_the_page_has_metrics_and_answers_nothing_else(page: str, path: str) -> None:
    found, kind, text = fetched(page, path)
    status, line = PAGES[path]
    kinds = {404: "text/html", 200: "application/json" if path == "/timeline" else "text/plain"}
    assert (found, kind.partition(";")[0]) == (status, kinds[status])
    assert re.search(f"^{line}$", text, re.MULTILINE)


@pytest.mark.parametrize("phase", Phase)
def test_healthz_is_200_while_the_server_serves_and_says_its_phase(
    page: str, state: ServerState, phase: Phase
) -> None:
    state.phase = phase
    status, _, text = fetched(page, "/healthz")
    assert (status, text) == (200 if phase == Phase.SERVING else 503, f"{phase.name}\n")


def test_a_client_that_hangs_up_harms_nothing(page: str, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = page.removeprefix("http://").split(":")
    for sent in (b"", b"GET /metr", b"\x00\xff\r\n\r\n"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    with urllib.request.urlopen(f"{page}/metrics", timeout=30) as reply:
        assert reply.status == 200
    assert capfd.readouterr() == ("", "")


def test_clients_that_never_ask_give_way_to_those_that_do(page: str) -> None:
    host, port = page.removeprefix("http://").split(":")
    threads, begun = threading.active_count(), time.monotonic()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(63)
        ]
        for _ in range(3):
            with urllib.request.urlopen(f"{page}/metrics", timeout=30) as reply:
                assert reply.status == 200
        assert [client.recv(1) for client in silent[:50]] == [b""] * 50  # cut, the oldest first
        assert time.monotonic() < begun + 10, "before their own time was over"
        wait_until(lambda: threading.active_count() <= threads + 8, "threads end with them")
        silent[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(12) == b"HTTP/1.0 200"
