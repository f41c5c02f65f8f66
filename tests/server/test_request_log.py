"""The line of each call: its times, and that nothing of a call that has ended is kept."""

import gc
import weakref
from unittest.mock import patch

import pytest

from grace.server.errors import Cancelled
from grace.server.messages import PendingRequest
from grace.server.observe.request_log import RequestLog
from support.pipeline_cases import (
    empty_features,
    empty_generated,
    empty_input,
    no_answers,
    request_batch,
    request_of,
    spans_of,
)


class WatchedRequest(PendingRequest):
    """One that a weak reference may point to."""


def watched_request() -> WatchedRequest:
    plain = request_of()
    return WatchedRequest(plain.retrieval, plain.arrived, plain.deadline)


def done(log: RequestLog, request: PendingRequest) -> None:
    """What the post stage tells of a batch of this request alone."""
    spans = spans_of(0.002, 0.004, 0.001, begin=request.arrived)
    prepared = empty_generated(empty_features(empty_input(request_batch(request))))
    log.batch_done(no_answers(prepared, spans[:3]), spans)


def test_the_line_of_a_call_has_its_stages_and_its_waiting() -> None:
    log, request = RequestLog(), request_of()
    done(log, request)
    with patch("grace.server.observe.request_log._LOG.info") as told:
        log.write("r7", request, 3.5, None)
    fields = told.call_args.kwargs["extra"]
    assert (fields["request_id"], fields["code"], fields["batch_size"]) == ("r7", "OK", 1)
    stages = [fields[f"{stage}_us"] for stage in ("input", "features", "generate", "post")]
    assert stages == [1000, 1000, 4000, 1000]
    assert fields["queue_us"] == 3_000_000  # three gaps of a second
    assert fields["total_us"] == 3_500_000


@pytest.mark.parametrize("end", ["answered", "cancelled", "forgotten"])
def test_nothing_of_a_call_that_has_ended_is_kept(end: str) -> None:
    log, request = RequestLog(), watched_request()
    done(log, request)
    if end == "forgotten":
        log.forget(request)
    else:
        log.write("r7", request, 0.1, Cancelled() if end == "cancelled" else None)
    watch = weakref.ref(request)
    del request
    gc.collect()
    assert watch() is None
