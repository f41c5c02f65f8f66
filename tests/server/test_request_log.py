"""The log line of a call."""

import logging

import pytest

from grace.server.messages import STAGE_NAMES
from grace.server.observe.logs import LOGGER
from grace.server.observe.request_log import log_request
from support.pipeline_cases import request_of, spans_of


def test_the_line_of_a_call_has_its_stages_and_its_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = request_of()
    request.batch_size = 7
    request.spans = spans_of(0.002, 0.004, 0.001, begin=request.arrived)
    with caplog.at_level(logging.INFO, LOGGER):
        log_request("r7", request, 3.5, None)
    (record,) = caplog.records
    fields = vars(record)
    assert (fields["request_id"], fields["code"], fields["batch_size"]) == ("r7", "OK", 7)
    assert [fields[f"{stage}_us"] for stage in STAGE_NAMES] == [1000, 1000, 4000, 1000]
    assert fields["queue_us"] == 3_000_000  # three gaps of a second
    assert fields["total_us"] == 3_500_000
