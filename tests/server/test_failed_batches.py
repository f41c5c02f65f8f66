"""How many batches may fail before a stage counts as broken."""

from dataclasses import replace

import pytest
import torch

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.scheduling.failed_batches import FailedBatches
from grace.server.stages.requests import read_request
from support.pipeline_cases import GENERATION, request_of

ERROR = ValueError()


@pytest.fixture
def failed() -> FailedBatches:
    return FailedBatches()


def test_three_in_a_row_are_a_broken_stage(failed: FailedBatches) -> None:
    batches = [[request_of(name)] for name in "abc"]
    assert [failed.broken_by(ERROR, batch) for batch in batches] == [False, False, True]


def test_a_success_begins_a_new_row(failed: FailedBatches) -> None:
    batches = [[request_of(name)] for name in "ab"]
    for _ in range(5):
        assert not any(failed.broken_by(ERROR, batch) for batch in batches)
        failed.clear()


def test_after_an_error_of_the_device_the_first_is_enough(failed: FailedBatches) -> None:
    assert failed.broken_by(torch.AcceleratorError("lost"), [request_of()])


def test_a_batch_of_several_counts_each_time(failed: FailedBatches) -> None:
    batch = [request_of("a"), request_of("b")]
    assert [failed.broken_by(ERROR, batch) for _ in range(3)] == [False, False, True]


def test_a_lone_request_counts_once_whatever_its_id(
    failed: FailedBatches,
) -> None:
    message = RetrieveRequest()
    for name in ("country", "device", "x" * 99):
        message.user[name].values.extend(["a", "value", "value"])
    message.features.bags["pages"].ids.extend(range(999))
    message.features.sequences["clicks"].sids.extend([1, 2] * 64)
    message.exclude_ads.extend(range(63))
    for i in range(9):
        message.request_id = str(i)
        retrieval = read_request(message.SerializeToString(), LimitsConfig(), GENERATION)
        pending = replace(request_of(), retrieval=retrieval)
        assert not failed.broken_by(ERROR, [pending])
    assert not failed.broken_by(ERROR, [request_of("another")])
    assert failed.broken_by(ERROR, [request_of("third")])
