"""The threads that do the stages, and the batches that pass between them.

    submit -> Scheduler -> input -> features -> generate -> post -> Outcomes

One thread feeds: it does input and features. Work of a GPU is only queued, so there it does
generate, too; on a CPU, generate has a thread. Post has its own.

While generate works on a batch, the next one forms as soon as it is full, or just in time to be
prepared when generate is free. So generate hardly waits for the stages before it while there is
work, and a lone request starts at once. Every request that was taken ends exactly once: the
pipeline reports its outcome, or `cancel` took it back while it waited.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Queue
from threading import Event
from time import perf_counter, thread_time
from typing import Any, Generic, Protocol, TypeVar

from grace.configs.generation import GenerationConfig
from grace.configs.serving import BatchingConfig
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import internal
from grace.server.messages import (
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    Outcome,
    PendingRequest,
    RequestBatch,
    Span,
    StageName,
)
from grace.server.observe.logs import LOG
from grace.server.observe.timeline import HostWork, Timeline
from grace.server.scheduling.controller import Controller, Departure
from grace.server.scheduling.predictions import BatchUnderWay, Place, Predictions
from grace.server.scheduling.scheduler import Scheduler
from grace.server.scheduling.stage_faults import FailedBatches, StageWatch, place_of
from grace.server.scheduling.streams import Mark, Streams
from grace.server.stages.stages import Stages
from grace.server.threads import daemon_thread

Batch = TypeVar("Batch")
Taken = TypeVar("Taken", "Departure", "_Carried[Any]")
Made = TypeVar("Made")


class Outcomes(Protocol):
    """Called from the pipeline's threads. An exception ends the stage that called."""

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        """Report a batch that has passed all stages, before its requests end."""

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Report how requests ended: each one once, unless `cancel` took it back."""


@dataclass(frozen=True, slots=True)
class _Timed:
    begin: Mark
    end: Mark
    host: HostWork


@dataclass(frozen=True, slots=True)
class _Carried(Generic[Batch]):
    """A batch between two stages, readable once the last mark has passed."""

    under_way: BatchUnderWay
    batch: Batch
    times: tuple[_Timed, ...] = ()
    made: tuple[object, ...] = ()  # what the stages before made of it, which streams may still read

    @property
    def requests(self) -> Sequence[PendingRequest]:
        return self.under_way.requests


class Pipeline:
    """Any thread may submit to the scheduler, cancel there, ask how much waits, and close.

    `died` is called once, from one of the threads here, when a stage has died and all requests have
    ended. The process must end then.
    """

    def __init__(
        self,
        stages: Stages,
        pair: Callable[[], ServingPair],
        generation: GenerationConfig,
        batching: BatchingConfig,
        predictions: Predictions,
        outcomes: Outcomes,
        died: Callable[[], None],
        streams: Streams,
        timeline: Timeline,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._stages = stages
        self._pair = pair
        self._profiles = generation.profiles
        self._outcomes = outcomes
        self._died = died
        self._timeline = timeline
        self._watch = StageWatch(batching.hang_seconds)
        buckets, ladders = generation.batch_buckets, generation.ladders
        self.scheduler = Scheduler(Controller(batching, buckets, predictions, ladders), clock)
        # The slots between threads. None follows the last batch.
        self._to_generate: Queue[_Carried[FeatureBatch] | None] = Queue(1)
        self._to_post: Queue[_Carried[GeneratedBatch] | None] = Queue(1)
        self._answered = Event()
        self._answered.set()
        self._streams, self._marks = streams.of, streams.clock
        self._failed = {stage: FailedBatches() for stage in self._streams}
        queues = streams.of["generate"].queues
        self._begin_generate = self._generate if queues else self._to_generate.put
        after = self._to_post if queues else self._to_generate
        feeds = self._thread("input", self.scheduler.next_batch, self._input, after)
        generates = feeds
        if not queues:
            generates = self._thread(
                "generate", self._to_generate.get, self._generate, self._to_post
            )
        posts = self._thread("post", self._to_post.get, self._post, None)
        self._threads: dict[StageName, threading.Thread] = {
            "input": feeds,
            "features": feeds,
            "generate": generates,
            "post": posts,
        }

    def start(self) -> None:
        for thread in dict.fromkeys(self._threads.values()):
            thread.start()

    def beat(self) -> None:
        """Let a stage that hangs die. The server calls this once a second to count the time."""
        if (stage := self._watch.beat()) is not None:
            self._die(stage, place_of(self._threads[stage].name))

    def close(self) -> None:
        self.scheduler.close()

    def join(self, timeout: float) -> bool:
        """Wait for the threads to end, after `close`. True once all have."""
        end = perf_counter() + timeout
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.join(max(0.0, end - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def wait_answered(self) -> None:
        """Wait until the outcomes of the batch that post works on, if any, have been reported."""
        self._answered.wait()

    def _thread(
        self,
        stage: StageName,
        take: Callable[[], Taken | None],
        work: Callable[[Taken], None],
        next_slot: Queue[Any] | None,
    ) -> threading.Thread:
        """A thread does its first stage and later ones in the same turn."""
        name = "grace-feed" if stage == "input" else f"grace-{stage}"

        def run() -> None:
            try:
                if stage == "post":  # it waits for the device and reads its times
                    self._marks.enter()
                while (taken := take()) is not None:
                    work(taken)
                    # A thread that waits for work must not hold the memory of the last.
                    del taken
            except BaseException as error:  # noqa: BLE001, whatever ends a stage ends the service
                self._die(stage, error)
                while take() is not None:
                    pass  # or the stage before would wait for ever to pass its batch on
            if next_slot is not None:
                next_slot.put(None)

        return daemon_thread(name, run)

    def _input(self, departure: Departure) -> None:
        self._end(departure.failures)
        under_way = departure.batch
        if under_way is None:
            return
        bound = RequestBatch(
            pair=self._pair(),
            profile_name=under_way.profile,
            profile=self._profiles[under_way.profile],
            bucket=under_way.bucket,
            requests=under_way.requests,
        )
        carried = self._attempt("input", _Carried(under_way, bound), self._read_all)
        if carried is not None and carried.batch.requests:
            self._end(carried.batch.failures)
            self._features(carried)
        elif carried is not None:
            self._streams["input"].finish()  # it may still read the batch
            self._end(carried.batch.failures, under_way)

    def _features(self, given: _Carried[InputBatch]) -> None:
        carried = self._attempt("features", given, self._stages.features)
        if carried is not None:
            self._begin_generate(carried)

    def _generate(self, given: _Carried[FeatureBatch]) -> None:
        if failures := self.scheduler.unwanted(given.batch.input.requests):
            # Generate has not read the batch, so it is free once features' work is done.
            self._watch.begin("generate", given.requests)
            self._marks.wait_for(given.times[-1].end)
            self._watch.end("generate")
            self._end(failures, given.under_way)
            return
        self.scheduler.advance(given.under_way, Place.QUEUED)
        carried = self._attempt("generate", given, self._stages.generate)
        if carried is not None:
            if self._streams["generate"].passed(carried.times[-1].end):
                self.scheduler.advance(given.under_way, Place.GENERATED)
            self._to_post.put(carried)

    def _post(self, given: _Carried[GeneratedBatch]) -> None:
        self._watch.begin("post", given.requests)  # also while it waits for the device
        self._marks.wait_for(given.times[-1].end)
        self.scheduler.advance(given.under_way, Place.POST)
        marks = [mark for each in given.times for mark in (each.begin, each.end)]
        moments = self._marks.times(marks)
        ends = zip(given.times, moments[::2], moments[1::2], strict=True)
        spans = tuple(Span(each.host.stage, begin, end) for each, begin, end in ends)
        answered = self._answered = Event()
        try:
            carried = self._attempt("post", given, lambda batch: self._answer_all(batch, spans))
            if carried is not None:
                post = carried.times[-1]
                spans = (*spans, Span("post", post.begin, post.end))
                made, host = carried.batch, [each.host for each in carried.times]
                self._timeline.add(made.input.batch, spans, host)
                for request in made.input.requests:
                    request.batch_size, request.spans = len(given.requests), spans
                self._outcomes.batch_done(made, spans)
                self._end([*made.answers, *made.failures], given.under_way, spans)
        finally:
            answered.set()
        self._watch.end("post")

    def _read_all(self, batch: RequestBatch) -> InputBatch:
        made = self._stages.input(batch)
        _require_all(batch.requests, made.requests, made.failures)
        return made

    def _answer_all(self, batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
        made = self._stages.post(batch, spans)
        answered = [answer.request for answer in made.answers]
        _require_all(batch.input.requests, answered, made.failures)
        return made

    def _attempt(
        self, stage: StageName, given: _Carried[Batch], work: Callable[[Batch], Made]
    ) -> _Carried[Made] | None:
        """Do a stage's work on a batch. None if it has failed, and its requests have ended."""
        stream = self._streams[stage]
        self._watch.begin(stage, given.requests)
        stream.enter()
        now, used = perf_counter(), thread_time()
        try:
            if given.times:
                stream.follow(given.times[-1].end)
            begin = self._begins(stage, given)
            made = work(given.batch)
            end = stream.mark()
            host = HostWork(stage, now, perf_counter(), thread_time() - used)
        except BaseException as error:  # fails one batch, unless the stage is broken
            if self._failed[stage].broken_by(error, given.requests):
                self._die(stage, error)
                raise
            stream.finish()  # it may still read the batch
            self._end([Failure(each, internal()) for each in given.requests], given.under_way)
            # Only now: a log that is not read must not hold back the callers.
            fields = {"stage": stage, "requests": _ids(given.requests)}
            LOG.error("batch_failed", exc_info=error, extra=fields)
            return None
        finally:
            if stage != "post":  # which goes on until the outcomes are reported
                self._watch.end(stage)
        self._failed[stage].clear()
        times = (*given.times, _Timed(begin, end, host))
        return _Carried(given.under_way, made, times, (*given.made, given.batch))

    def _begins(self, stage: StageName, given: _Carried[Any]) -> Mark:
        """Return the mark where a stage begins. Reuse an earlier one if possible: each mark takes
        time. The streams of input and features have no other work, so input begins now, and
        features where input has ended."""
        if stage == "input":
            return perf_counter()
        return given.times[-1].end if stage == "features" else self._streams[stage].mark()

    def _end(
        self,
        outcomes: Sequence[Outcome],
        under_way: BatchUnderWay | None = None,
        spans: tuple[Span, ...] = (),
    ) -> None:
        """End requests, and their batch if it is given, and report their outcomes."""
        reported = self.scheduler.end(outcomes, under_way, spans)
        if reported:
            self._outcomes.ended(reported)

    def _die(self, stage: StageName, error: BaseException) -> None:
        lost = self.scheduler.abandon()
        if lost is None:  # another stage died before
            return
        try:
            if lost:
                self._outcomes.ended([Failure(each, internal("stage_died")) for each in lost])
        finally:
            self._died()
            fields = {"stage": stage, "requests": _ids(self._watch.requests(stage))}
            LOG.critical("stage_died", exc_info=error, extra=fields)


def _ids(requests: Sequence[PendingRequest]) -> list[str]:
    return [request.retrieval.request_id for request in requests]


def _require_all(
    expected: Sequence[PendingRequest],
    passed_on: Sequence[PendingRequest],
    failures: Sequence[Failure],
) -> None:
    """A request that a stage forgets would wait for ever."""
    if set(expected) != {*passed_on, *(failure.request for failure in failures)}:
        raise RuntimeError("a stage must pass on or fail each of its requests, and no other")
