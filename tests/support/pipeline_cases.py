"""Pipelines, requests and recorders for tests, and stages that wait or fail as a script says."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.serving import BatchingConfig, LimitsConfig
from grace.index.forms.bits import AskedBits
from grace.index.matching.exact import MatchCounts
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import UserTensors
from grace.model.definition.inputs import FeatureTensors
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import (
    Answer,
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    Outcome,
    PendingRequest,
    Priority,
    RequestBatch,
    Span,
    StageName,
)
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.pipeline import Pipeline
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.streams import Streams, streams_for
from grace.server.stages.requests import read_request
from grace.server.stages.stages import Stages
from support.faults import Disturb, disturbed
from support.server_process import wait_until

LONG = 30.0
"""Seconds after which a wait fails: far beyond what the slowest machine needs."""

GENERATION = GenerationConfig(
    max_batch=4, profiles={"full": BeamProfile((1, 4), 4), "reduced": BeamProfile((1, 2), 2)}
)
PAIR = object.__new__(ServingPair)
"""No stage here looks into it."""


@dataclass
class Clock:
    """Time that stands still until a test moves it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def request_of(
    name: str = "r",
    profile: str = "full",
    priority: Priority = "NORMAL",
    deadline: float = math.inf,
    arrived: float | None = None,
) -> PendingRequest:
    message = RetrieveRequest(
        request_id=name, user={"name": Values(values=[name])}, profile=profile, priority=priority
    )
    retrieval = read_request(message.SerializeToString(), LimitsConfig(), GENERATION)
    return PendingRequest(retrieval, time.perf_counter() if arrived is None else arrived, deadline)


def request_batch(
    *requests: PendingRequest, bucket: int = 4, profile: str = "full"
) -> RequestBatch:
    return RequestBatch(PAIR, profile, GENERATION.profiles[profile], bucket, requests)


def spans_of(before: float, generate: float, after: float, begin: float = 0.0) -> tuple[Span, ...]:
    spans: list[Span] = []
    stages: tuple[tuple[StageName, float], ...] = (
        ("input", before / 2),
        ("features", before / 2),
        ("generate", generate),
        ("post", after),
    )
    for stage, seconds in stages:
        spans.append(Span(stage, begin, begin + seconds))
        begin += seconds + 1.0  # queueing, which is no stage's time
    return tuple(spans)


def empty_input(batch: RequestBatch) -> InputBatch:
    return InputBatch(
        batch=batch,
        requests=batch.requests,
        failures=(),
        ignored=(),
        at=0,
        user_rows=UserRows(
            object.__new__(UserEncoder), (AskedBits(np.zeros((batch.bucket, 1), np.uint64)),), ()
        ),
        users=UserTensors.asking(torch.zeros(batch.bucket, 1, dtype=torch.int64)),
        features=lambda: FeatureTensors(None, ()),
    )


def empty_features(batch: InputBatch) -> FeatureBatch:
    return FeatureBatch(batch, FeatureTensors(None, ()))


def empty_generated(batch: FeatureBatch) -> GeneratedBatch:
    rows = batch.input.batch.bucket
    return GeneratedBatch(
        batch.input,
        torch.full((rows, 1), -1, dtype=torch.int32),
        torch.full((rows, 1), -math.inf),
        torch.zeros(rows, dtype=torch.bool),
    )


def no_answers(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """An empty reply for each request."""
    assert [span.stage for span in spans] == ["input", "features", "generate"]
    zeros = np.zeros(len(batch.input.requests), np.int64)
    return AnsweredBatch(
        batch.input,
        tuple(Answer(request, b"") for request in batch.input.requests),
        (),
        MatchCounts(*(*[zeros] * 7, zeros[:, None], zeros)),
    )


def plain_stages(disturb: Disturb) -> Stages:
    """Stages that compute nothing; each calls `disturb` first."""
    return disturbed(Stages(empty_input, empty_features, empty_generated, no_answers), disturb)


@dataclass
class Recorder:
    """The outcomes that a pipeline reports."""

    ends: list[Outcome] = field(default_factory=list)
    done: list[tuple[AnsweredBatch, tuple[Span, ...]]] = field(default_factory=list)
    deaths: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        with self.lock:
            self.ends += outcomes

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        self.done.append((answered, spans))

    def died(self) -> None:
        self.deaths += 1

    def reports(self) -> Counter[PendingRequest]:
        """How often the outcome of each request was reported."""
        with self.lock:
            return Counter(end.request for end in self.ends)

    def reason(self, request: PendingRequest) -> str | None:
        """Why a request failed. None for an answer."""
        (end,) = (end for end in self.ends if end.request is request)
        return end.error.reason if isinstance(end, Failure) else None

    def wait_for(self, *requests: PendingRequest) -> None:
        wait_until(lambda: self.reports().keys() >= set(requests), "they have ended")


def make_pipeline(
    stages: Stages,
    recorder: Recorder,
    max_waiting: int = 100,
    max_wait_ms: float = 0.0,
    predictions: Predictions | None = None,
    timeline: Timeline | None = None,
    streams: Streams | None = None,
    clock: Callable[[], float] = time.perf_counter,
    pair: Callable[[], ServingPair] = lambda: PAIR,
    generation: GenerationConfig = GENERATION,
) -> Pipeline:
    return Pipeline(
        stages,
        pair,
        generation,
        BatchingConfig(max_waiting, max_wait_ms),
        predictions or Predictions(),
        recorder,
        recorder.died,
        streams or streams_for(torch.device("cpu")),
        timeline or Timeline(),
        clock,
    )


Start = Callable[..., Pipeline]


class Script:
    """Which stages wait or raise, and the requests of every batch that a stage was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[StageName, tuple[str, ...]]] = []
        self.gates: dict[StageName, threading.Event] = {}
        self.raises: dict[StageName, BaseException] = {}

    def __call__(self, stage: StageName, requests: Sequence[PendingRequest]) -> None:
        self.batches.append((stage, tuple(each.retrieval.request_id for each in requests)))
        if stage in self.gates:
            assert self.gates[stage].wait(LONG)
        if stage in self.raises:
            raise self.raises[stage]

    def close(self, stage: StageName) -> None:
        self.gates[stage] = threading.Event()

    def open(self, stage: StageName) -> None:
        self.gates.pop(stage).set()

    def given(self, stage: StageName) -> list[tuple[str, ...]]:
        return [names for at, names in self.batches if at == stage]

    def wait_for(self, stage: StageName, *names: str) -> None:
        wait_until(lambda: names in self.given(stage), f"{names} are in {stage}")


@contextmanager
def pipelines(script: Script, recorder: Recorder) -> Iterator[Start]:
    """Start pipelines; on leaving end them, and check that no request ended twice."""
    started: list[Pipeline] = []

    def start(stages: Stages | None = None, **settings: Any) -> Pipeline:
        pipeline = make_pipeline(stages or plain_stages(script), recorder, **settings)
        started.append(pipeline)
        pipeline.start()
        return pipeline

    yield start
    for stage in tuple(script.gates):
        script.open(stage)
    for pipeline in started:
        pipeline.close()
        assert pipeline.join(LONG)
        assert (pipeline.scheduler.in_flight, pipeline.scheduler.waiting) == (0, 0)
    assert set(recorder.reports().values()) <= {1}


def occupy(pipeline: Pipeline, script: Script) -> None:
    """Stop one batch in generate and prepare one ahead of it: all others wait in the queue."""
    script.close("generate")
    pipeline.scheduler.submit(request_of("running"))
    script.wait_for("generate", "running")
    pipeline.scheduler.submit(request_of("prepared"))
    script.wait_for("features", "prepared")
