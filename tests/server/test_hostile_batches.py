"""One request's bytes, whatever they are, fail no other request of its batch, and no stage."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from time import perf_counter

import pytest
import torch

from grace.configs.serving import LimitsConfig
from grace.index.users.wire_user import WireUser
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.feature_stage import FastStage
from grace.model.engine.native_lookups import DirectInputs
from grace.model.engine.wire_features import WireFeatures
from grace.proto.retrieval_pb2 import Features, RetrieveRequest, RetrieveResponse, Values
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import InvalidRequest
from grace.server.messages import Answer, Failure, PendingRequest
from grace.server.scheduling.pipeline import Pipeline
from grace.server.stages.input_stage import prepare_inputs
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES
from support.fast_serving import assert_same_answers, fast_cpu_pairs, whole
from support.hostile_wire import HostileWire
from support.pipeline_cases import LONG, Recorder, make_pipeline, wait_until
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, answer, message_of, replies_of, request_batch
from support.wire_cases import field

SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
BUCKET = GENERATION.batch_buckets[-1]
LIMITS = LimitsConfig(exclude_ads=9)


class Credulous(FastStage):
    """Understands what it should not: as if C++ took bytes that protobuf refuses."""

    def direct(self, requests: Sequence[WireFeatures], size: int) -> DirectInputs:
        made = super().direct(requests, size)
        assert made is not None
        taken = [features.content == REFUSED for features in requests]
        both = zip(taken, made.understood, strict=True)
        return replace(made, understood=tuple(any(each) for each in both))


@pytest.fixture(scope="module")
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return fast_cpu_pairs(serving_files).first


def pending(message: bytes) -> PendingRequest:
    return PendingRequest(read_request(message, LIMITS, GENERATION), perf_counter(), float("inf"))


def hour(*values: float) -> bytes:
    features = Features()
    features.dense["hour"].values.extend(values)
    return features.SerializeToString()


def with_features(name: str, features: bytes) -> bytes:
    return RetrieveRequest(request_id=name).SerializeToString() + field(5, features)


ODD = with_features("odd", hour(3.0) + hour(4.0))
"""A name that comes twice: only protobuf reads it, and the rest of its batch along with it."""

REFUSED = field(1, b"\x0a\x04hour", 6)
"""A length in six bytes."""


def assert_fails_alone(
    pair: ServingPair, files: ServingFiles, bad: PendingRequest, reason: str
) -> None:
    """Among good requests, of which one is odd."""
    first, last = (pending(message_of(request)) for request in files.requests[:2])
    waiting = (first, bad, last, pending(ODD))
    batch = replace(request_batch(pair, [], 8), requests=waiting)
    made = prepare_inputs(batch)
    (failure,) = made.failures
    assert failure.request is bad
    assert isinstance(failure.error, InvalidRequest)
    assert failure.error.reason == reason
    assert made.requests == tuple(each for each in waiting if each is not bad)
    without = prepare_inputs(replace(batch, requests=made.requests))
    assert isinstance(made.inputs, FeatureLookups)
    assert isinstance(without.inputs, FeatureLookups)
    for one, other in zip(made.inputs.tensors(), without.inputs.tensors(), strict=True):
        assert torch.equal(one, other)


def with_content(features: bytes = b"", user: bytes = b"") -> PendingRequest:
    """As if the reader on the event loop had let it through."""
    nothing = pending(b"")
    content = replace(nothing.retrieval, features=WireFeatures(features), user=WireUser(user))
    return replace(nothing, retrieval=content)


def test_what_one_reader_takes_and_the_next_refuses_fails_alone(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    stage = Credulous(load_checkpoint(serving_files.checkpoint), torch.float32)
    credulous = replace(pair, model=replace(pair.model, features=stage))
    assert_fails_alone(credulous, serving_files, with_content(features=REFUSED), "malformed")


@pytest.mark.parametrize(
    "bad", [with_content(features=REFUSED), with_content(user=field(4, b"\x0a\x01\xff"))]
)
def test_bytes_that_protobuf_refuses_fail_alone_as_malformed(
    pair: ServingPair, serving_files: ServingFiles, bad: PendingRequest
) -> None:
    assert_fails_alone(pair, serving_files, bad, "malformed")


def test_what_the_catalogue_or_the_model_refuses_fails_alone(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    user = WireUser.of({"country": Values(values=["*"])}).content
    for bad in (with_content(user=user), with_content(features=hour(1.0, 2.0))):
        assert_fails_alone(pair, serving_files, bad, "invalid_field")


def test_hostile_requests_fail_no_good_one_and_no_stage(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    """Through all four stages: a GPU's, computed on the CPU."""
    asked = [whole(request, f"g{i}") for i, request in enumerate(serving_files.requests[:7])]
    expected = list(replies_of(answer(request_batch(pair, asked, 8))).values())
    random, recorder = Random(SEED), Recorder()
    wire = HostileWire(random, pair.model.spec, pair.snapshot.schema)
    good: list[PendingRequest] = []
    hostile: list[PendingRequest] = []
    with running(pair, recorder) as pipeline:
        end = perf_counter() + SECONDS
        while perf_counter() < end:
            message = message_of(asked[len(good) % len(asked)])
            good.append(pending(message))
            for _ in range(random.randint(0, 3)):
                with suppress(InvalidRequest):
                    hostile.append(pending(wire.request()))
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
    failed = [ends[request] for request in hostile if isinstance(ends[request], Failure)]
    assert {type(end.error) for end in failed if isinstance(end, Failure)} == {InvalidRequest}
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
