"""One request's bytes, whatever they are, fail no other request of its batch, and no stage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from time import perf_counter

import pytest
import torch
from grpc import StatusCode

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import Features, RetrieveResponse
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.messages import Answer, Failure, PendingRequest
from grace.server.scheduling.pipeline import Pipeline
from grace.server.stages.input_stage import prepare_inputs
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES
from support.fast_serving import assert_same_answers, fast_cpu_pairs, whole
from support.pipeline_cases import LONG, Recorder, make_pipeline, wait_until
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, answer, message_of, replies_of, request_batch
from support.wire_cases import field, hostile_request

SECONDS = float(os.environ.get("FUZZ_SECONDS", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
BUCKET = GENERATION.batch_buckets[-1]
LIMITS = LimitsConfig(exclude_ads=9)


@pytest.fixture(scope="module")
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return fast_cpu_pairs(serving_files).first


def pending(message: bytes) -> PendingRequest:
    return PendingRequest(read_request(message, LIMITS, GENERATION), perf_counter(), float("inf"))


def hour(*values: float) -> bytes:
    features = Features()
    features.dense["hour"].values.extend(values)
    return field(5, features.SerializeToString())


ODD = pending(hour(3.0) + hour(4.0))
"""A name that comes twice, of which the last one counts."""

REFUSED = {
    "a length in six bytes": (field(5, field(1, b"\x0a\x04hour", 6)), "malformed", ""),
    "a name that is no text": (field(4, field(1, b"\xff")), "malformed", ""),
    "a reserved value": (
        message_of({"user": {"mood": {"values": ["*"]}}}),
        "invalid_field",
        "user.mood.values: '*' is reserved; name values, or send none",
    ),
    "too many numbers": (
        hour(1.0, 2.0),
        "invalid_field",
        "features.dense.hour.values: 2 values, the model takes 1",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_refused_request_fails_alone(
    pair: ServingPair, serving_files: ServingFiles, fault: str
) -> None:
    """As if the event loop had let it through; among good ones, of which one is odd."""
    message, reason, text = REFUSED[fault]
    nothing = pending(b"")
    bad = replace(nothing, retrieval=replace(nothing.retrieval, message=message))
    first, last = (pending(message_of(request)) for request in serving_files.requests[:2])
    waiting = (first, bad, last, ODD)
    batch = replace(request_batch(pair, [], 8), requests=waiting)
    made = prepare_inputs(batch)
    (failure,) = made.failures
    assert failure.request is bad
    assert failure.error.reason == reason
    assert not text or failure.error.text == text
    assert made.requests == (first, last, ODD)
    without = prepare_inputs(replace(batch, requests=made.requests))
    assert not without.failures
    tensors = zip(made.inputs.tensors(), without.inputs.tensors(), strict=True)
    assert all(torch.equal(one, other) for one, other in tensors)
    assert torch.equal(made.users.bitmask, without.users.bitmask)
    assert made.users.eligible is not None
    assert without.users.eligible is not None
    assert torch.equal(made.users.eligible, without.users.eligible)


def test_hostile_requests_fail_no_good_one_and_no_stage(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    """Through all four stages: a GPU's, computed on the CPU."""
    asked = [whole(request, f"g{i}") for i, request in enumerate(serving_files.requests[:7])]
    expected = list(replies_of(answer(request_batch(pair, asked, 8))).values())
    random, recorder = Random(SEED), Recorder()
    spec, schema = pair.model.spec, pair.snapshot.schema
    good: list[PendingRequest] = []
    hostile: list[PendingRequest] = []
    with running(pair, recorder) as pipeline:
        end = perf_counter() + SECONDS
        while perf_counter() < end:
            message = message_of(asked[len(good) % len(asked)])
            good.append(pending(message))
            for _ in range(random.randint(0, 3)):
                with suppress(ServiceError):
                    hostile.append(pending(hostile_request(random, spec, schema)))
                    pipeline.submit(hostile[-1])
            pipeline.submit(good[-1])
            wait_until(lambda: len(recorder.ends) > len(good) + len(hostile) - 2 * BUCKET)
    ends = {end.request: end for end in recorder.ends}
    assert ends.keys() == {*good, *hostile}
    for number, request in enumerate(good):
        answered = ends[request]
        assert isinstance(answered, Answer)
        reply = RetrieveResponse.FromString(answered.reply)
        assert_same_answers(reply, expected[number % len(asked)])
    failed = [given for request in hostile if isinstance(given := ends[request], Failure)]
    assert {end.error.code for end in failed} == {StatusCode.INVALID_ARGUMENT}
    assert len(hostile) / 9 < len(failed) < len(hostile)
    assert any(len(made.answers) > 1 and made.input.failures for made, _ in recorder.done)


@contextmanager
def running(pair: ServingPair, recorder: Recorder) -> Iterator[Pipeline]:
    pipeline = make_pipeline(
        STAGES,
        recorder,
        max_waiting=4 * BUCKET,
        pair=lambda: pair,
        generation=GENERATION,
    )
    pipeline.start()
    yield pipeline
    pipeline.close()
    assert pipeline.join(LONG)
    assert not recorder.deaths
