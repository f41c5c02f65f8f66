"""Stages that wait and fail where a test says, and pipelines over them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grace.server.messages import PendingRequest, StageName
from grace.server.scheduling.pipeline import Pipeline
from grace.server.stages.stages import Stages
from support.pipeline_cases import LONG, Recorder, make_pipeline, plain_stages, request_of
from support.server_process import wait_until

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
