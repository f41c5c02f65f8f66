"""One request's bytes, whatever they are, fail no other request of its batch, and no stage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from time import perf_counter

import pytest
import torch
from grpc import StatusCode

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.messages import Answer, Failure, PendingRequest
from grace.server.scheduling.pipeline import Pipeline
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES
from support.fast_serving import assert_same_answers, fast_cpu_pairs, whole
from support.pipeline_cases import LONG, Recorder, make_pipeline, wait_until
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, answer, message_of, replies_of, request_batch
from support.wire_cases import hostile_request

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
