"""The pipeline's waits between streams, and the memory that it holds, on a device that is late.

The lazy device is always as late as a GPU can be; `test_pipeline_gpu.py` uses a real one.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter, sleep
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.kernels import UserTensors
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine.feature_stage import at_once
from grace.server.errors import internal
from grace.server.messages import (
    STAGE_NAMES,
    Answer,
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    RequestBatch,
    Span,
)
from grace.server.observe.logs import LOGGER
from grace.server.scheduling.streams import Clock, Stream, Streams
from grace.server.stages.stages import Stages
from support.pipeline_cases import (
    LONG,
    Recorder,
    empty_features,
    empty_generated,
    empty_input,
    make_pipeline,
    no_answers,
    request_of,
)
from support.server_process import wait_until

Work = Callable[[], object]


@dataclass(eq=False)
class Mark:
    """`at` is the time when its stream came by."""

    stream: "LazyStream"
    at: float | None = None

    def reached(self) -> None:
        self.at = perf_counter()


class LazyDevice:
    """A device that does its work as late as it may.

    Work that a stage queues on its stream runs when a thread waits for a mark after it, and no
    sooner. So a stage that forgets to wait reads what has not been written yet. Queued work knows
    memory by weak references: memory that is not held until then has been given away: a fault.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._lock = threading.RLock()
        self._working = threading.local()
        self._streams = [LazyStream(self._lock, self._working) for _ in range(3)]

    def streams(self) -> Streams:
        streams = (*self._streams, Stream())
        return Streams(dict(zip(STAGE_NAMES, streams, strict=True)), LazyClock())

    def queue(self, work: Callable[..., None], made: Tensor, *given: Tensor) -> None:
        """Queue work on the stream of the stage that calls: on what it was given, if that still
        exists, and on what it has made, which a stream gives away only after its own work."""
        weak = [weakref.ref(tensor) for tensor in given]

        def run() -> None:
            there = [tensor for reference in weak if (tensor := reference()) is not None]
            if len(there) == len(weak):
                work(made, *there)
            else:
                self.faults.append("memory was given away before it was read")

        self._working.stream.queue(run)

    def finish(self) -> None:
        for stream in self._streams:
            stream.finish()


class LazyStream(Stream):
    def __init__(self, lock: threading.RLock, working: threading.local) -> None:
        self._lock = lock
        self._working = working
        self._queued: deque[Work] = deque()

    queues = True

    def enter(self) -> None:
        self._working.stream = self

    def queue(self, work: Work) -> None:
        with self._lock:
            self._queued.append(work)

    def mark(self) -> Mark:
        made = Mark(self)
        self.queue(made.reached)
        return made

    def follow(self, mark: Mark) -> None:
        self.queue(lambda: mark.stream.run_to(mark))

    def passed(self, mark: Mark) -> bool:
        return mark.at is not None

    def finish(self) -> None:
        self.run_to(self.mark())

    def run_to(self, mark: Mark) -> None:
        with self._lock:
            while mark.at is None:
                self._queued.popleft()()


class LazyClock(Clock):
    def wait_for(self, mark: Mark) -> None:
        sleep(0.002)  # what the stages before do not hold is gone by now
        mark.stream.run_to(mark)

    def times(self, marks: Sequence[Mark | float]) -> list[float]:
        return [(mark if isinstance(mark, float) else mark.at) or 0.0 for mark in marks]


GARBAGE = -7
REQUESTS = 41


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log record holds its error and so its frames, with memory that the pipeline has let go."""
    monkeypatch.setattr(logging.getLogger(LOGGER), "disabled", True)


class LazyStages:
    """Work on a lazy device: 3 (id + 100) + 1, one step a stage.

    disturb  is called when features and generate have queued their work, and when post begins
    """

    def __init__(
        self, device: LazyDevice, disturb: Callable[[str], None] = lambda stage: None
    ) -> None:
        self.device = device
        self._disturb = disturb

    def stages(self) -> Stages:
        return Stages(self.read, self.features, self.generate, self.post)

    def read(self, batch: RequestBatch) -> InputBatch:
        ids = [int(request.retrieval.request_id) for request in batch.requests]
        made = torch.full((batch.bucket,), GARBAGE)

        def write(made: Tensor) -> None:
            made[: len(ids)] = torch.tensor(ids) + 100

        self.device.queue(write, made)
        return replace(empty_input(batch), users=UserTensors.asking(made))

    def features(self, batch: InputBatch) -> FeatureBatch:
        given = batch.users.bitmask
        made = torch.full_like(given, GARBAGE)
        self.device.queue(lambda made, given: made.copy_(given * 3), made, given)
        self._disturb("features")
        return replace(empty_features(batch), features=FeatureTensors(made, ()))

    def generate(self, batch: FeatureBatch) -> GeneratedBatch:
        given = at_once(batch.features).non_sequence
        assert given is not None
        made = torch.full((len(given), 1), GARBAGE, dtype=torch.int32)
        self.device.queue(lambda made, given: made.copy_(given[:, None] + 1), made, given)
        self._disturb("generate")
        return replace(empty_generated(batch), leaves=made)

    def post(self, batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
        self._disturb("post")
        answers = tuple(
            Answer(request, str(leaf).encode())
            for request, leaf in zip(
                batch.input.requests, batch.leaves[:, 0].tolist(), strict=False
            )
        )
        return replace(no_answers(batch, spans), answers=answers)


def run(stages: LazyStages) -> Recorder:
    recorder, device = Recorder(), stages.device
    pipeline = make_pipeline(stages.stages(), recorder, streams=device.streams())
    pipeline.start()
    for number in range(REQUESTS):
        pipeline.scheduler.submit(request_of(str(number)))
    pipeline.close()
    assert pipeline.join(LONG)
    assert recorder.deaths == 0
    assert len(recorder.ends) == REQUESTS
    device.finish()
    return recorder


def wrong(recorder: Recorder) -> int:
    return sum(
        int(end.reply) != 3 * (int(end.request.retrieval.request_id) + 100) + 1
        for end in recorder.ends
        if isinstance(end, Answer)
    )


def test_every_stage_reads_what_the_one_before_has_written_and_still_holds() -> None:
    device = LazyDevice()
    recorder = run(LazyStages(device))
    assert sum(isinstance(end, Answer) for end in recorder.ends) == REQUESTS
    assert wrong(recorder) == 0
    assert device.faults == []


@pytest.mark.parametrize("stage", ["features", "generate", "post"])
def test_a_batch_that_fails_with_work_queued_is_held_until_that_is_done(stage: str) -> None:
    device, times = LazyDevice(), count(1)

    def disturb(at: str) -> None:
        """Fail every third time, when the stage's work is queued."""
        if at == stage and next(times) % 3 == 0:
            raise ValueError

    recorder = run(LazyStages(device, disturb))
    assert 0 < sum(isinstance(end, Answer) for end in recorder.ends) < REQUESTS
    assert wrong(recorder) == 0
    assert device.faults == []


class SometimesRefusing(LazyStages):
    """Input sends a block to the device, and refuses every second batch."""

    batches = 0

    def read(self, batch: RequestBatch) -> InputBatch:
        made = super().read(batch)
        block: Any = torch.zeros(1)
        self.device.queue(lambda made, given: None, made.users.bitmask, block)
        self.batches += 1
        if self.batches % 2:
            return replace(made, staged=(block,))
        refused = tuple(Failure(each, internal()) for each in batch.requests)
        return replace(made, requests=(), failures=refused, staged=(block,))


def test_a_batch_that_is_refused_with_a_copy_queued_is_held_until_that_is_done() -> None:
    device = LazyDevice()
    recorder = run(SometimesRefusing(device))
    assert 0 < sum(isinstance(end, Answer) for end in recorder.ends) < REQUESTS
    assert device.faults == []


@pytest.mark.parametrize("fate", ["cancelled", "internal"])
def test_a_batch_that_ends_early_leaves_no_memory_to_the_next(fate: str) -> None:
    """The masks of three batches fit: one in post, one that waits for it, and one more."""
    device = LazyDevice()
    gate, made = threading.Event(), list[weakref.ref[Tensor]]()
    plain = LazyStages(device).stages()
    requests = [request_of(str(number)) for number in range(5)]
    early = requests[2:4]

    def features(batch: InputBatch) -> FeatureBatch:
        if fate == "cancelled" and batch.requests[0] in early:
            assert not pipeline.scheduler.cancel(batch.requests[0])
        computed = plain.features(batch)
        states = at_once(computed.features).non_sequence
        assert states is not None
        made.append(weakref.ref(states))
        return computed

    def generate(batch: FeatureBatch) -> GeneratedBatch:
        generated = plain.generate(batch)
        if batch.input.requests[0] in early:
            raise ValueError
        return generated

    def post(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
        assert gate.wait(LONG)
        return plain.post(batch, spans)

    recorder = Recorder()
    lazy = Stages(plain.input, features, generate, post)
    pipeline = make_pipeline(lazy, recorder, streams=device.streams())
    pipeline.start()
    for number, request in enumerate(requests):
        pipeline.scheduler.submit(request)
        wait_until(lambda: len(made) > number, "it is made")  # noqa: B023
        if request in early:
            recorder.wait_for(request)
            wait_until(lambda: sum(each() is not None for each in made) == 2, "it is let go")
    gate.set()
    pipeline.close()
    assert pipeline.join(LONG)
    assert [recorder.reason(each) for each in requests] == [None, None, fate, fate, None]
    device.finish()
    assert wrong(recorder) == 0
    assert device.faults == []
