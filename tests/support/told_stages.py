"""Stages that do as a test tells them, pipelines over them, and what the stages were given."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grace.server.messages import InputBatch, RequestBatch, StageName
from grace.server.scheduling.pipeline import Pipeline
from grace.server.stages.stages import Stages
from support.pipeline_cases import (
    LONG,
    Recorder,
    make_pipeline,
    plain_stages,
    request_of,
    wait_until,
)

__all__ = ["STAGE_NAMES", "Start", "Told", "occupy", "pipelines"]

STAGE_NAMES: tuple[StageName, ...] = ("input", "features", "generate", "post")
Start = Callable[..., Pipeline]


class Told:
    """What stages are told to do, and what they were given."""

    def __init__(self) -> None:
        self.batches: list[tuple[StageName, tuple[str, ...]]] = []
        self.gates: dict[StageName, threading.Event] = {}
        self.raises: dict[StageName, BaseException] = {}

    def __call__(self, stage: StageName, batch: InputBatch | RequestBatch) -> None:
        self.batches.append((stage, tuple(each.retrieval.request_id for each in batch.requests)))
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
        wait_until(lambda: names in self.given(stage))


@contextmanager
def pipelines(told: Told, recorder: Recorder) -> Iterator[Start]:
    """Starts pipelines, and on leaving ends them and sees that no request was told twice."""
    started: list[Pipeline] = []

    def start(stages: Stages | None = None, **settings: Any) -> Pipeline:
        pipeline = make_pipeline(stages or plain_stages(told), recorder, **settings)
        started.append(pipeline)
        pipeline.start()
        return pipeline

    yield start
    for stage in tuple(told.gates):
        told.open(stage)
    for pipeline in started:
        pipeline.close()
        assert pipeline.join(LONG)
        assert (pipeline.in_flight, pipeline.waiting) == (0, 0)
    assert set(recorder.times_told().values()) <= {1}


def occupy(pipeline: Pipeline, told: Told) -> None:
    """One batch stands in generate and one is prepared ahead of it: others wait in the line."""
    told.close("generate")
    pipeline.submit(request_of("running"))
    told.wait_for("generate", "running")
    pipeline.submit(request_of("prepared"))
    told.wait_for("features", "prepared")
