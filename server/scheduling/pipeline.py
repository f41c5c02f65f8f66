"""Four threads, one for each stage, and what passes between them.

    submit -> waiting line -> input -> features -> generate -> post -> outcomes

A batch forms as soon as something waits and no other batch is prepared, or being prepared, ahead of
generate: so generate never waits for the stages before it when there is work, and a lone request
leaves at once. Every request that was taken in ends once: its answer or failure is told, or it was
cancelled while it still waited. A prepared batch that nobody waits for any more is not generated.

The stages are pure functions. On a GPU each has a stream of its own (server/scheduling/lanes.py),
so that they
overlap; only post, whose work is the host's, waits for the device.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol, TypeVar

from grace.configs.generation import GenerationConfig
from grace.configs.serving import BatchingConfig
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import Cancelled, Draining, InternalError
from grace.server.messages import (
    Answer,
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    PendingRequest,
    RequestBatch,
    Retrieval,
    Span,
    StageName,
)
from grace.server.observe.logs import LOGGER
from grace.server.observe.thread_names import name_this_thread
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.failed_batches import FailedBatches
from grace.server.scheduling.hand_off import Carried, HandOff, Timed
from grace.server.scheduling.lanes import Clock, Lane, Lanes
from grace.server.scheduling.refusals import displaced, expired, queue_full, turned_away, unmeetable
from grace.server.scheduling.service_times import ServiceTimes
from grace.server.scheduling.waiting_line import Departure, WaitingLine, bucket_for
from grace.server.scheduling.work_ahead import WorkAhead
from grace.server.stages.stages import Stages

__all__ = ["Outcomes", "Pipeline"]

Given = TypeVar("Given")
Made = TypeVar("Made")

_LOG = logging.getLogger(LOGGER)


class Outcomes(Protocol):
    """Called from the pipeline's threads. What these raise is the end of the stage that called."""

    def ended(self, answers: Sequence[Answer], failures: Sequence[Failure]) -> None:
        """Each submitted request is in one call, once, unless `cancel` took it back."""

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        """Before its requests end."""

    def died(self, stage: StageName, error: BaseException) -> None:
        """The first dead stage; all requests have ended. The process must end."""


class Pipeline:
    """Any thread may submit, cancel and close."""

    def __init__(
        self,
        stages: Stages,
        pair: Callable[[], ServingPair],
        generation: GenerationConfig,
        batching: BatchingConfig,
        times: ServiceTimes,
        outcomes: Outcomes,
        lanes: Lanes,
        timeline: Timeline | None = None,
    ) -> None:
        self._stages = stages
        self._pair = pair
        self._generation = generation
        self._max_waiting = batching.max_waiting
        self._times = times
        self._outcomes = outcomes
        self._timeline = timeline
        self._work = WorkAhead(times)
        self._line = WaitingLine(batching, generation.batch_buckets, self._work)
        self._to_features: HandOff[InputBatch] = HandOff()
        self._to_generate: HandOff[FeatureBatch] = HandOff()
        self._to_post: HandOff[GeneratedBatch] = HandOff()
        self._lanes: dict[StageName, Lane] = {
            "input": lanes.input,
            "features": lanes.features,
            "generate": lanes.generate,
            "post": lanes.post,
        }
        self._clock = lanes.clock
        self._failed = {name: FailedBatches() for name in self._lanes}
        self._lock = threading.Lock()  # guards the three below; the line's own comes after it
        self._live: dict[PendingRequest, bool] = {}  # to whether its caller waits
        self._closed = False
        self._dead = False
        self._threads = [
            self._thread("input", self._input_next, self._to_features.close),
            self._thread("features", self._features_next, self._to_generate.close),
            self._thread("generate", self._generate_next, self._to_post.close),
            self._thread("post", self._post_next, None),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def in_flight(self) -> int:
        return len(self._live)

    def submit(self, request: PendingRequest) -> None:
        """Takes a request in, or refuses it at once."""
        with self._lock:
            if self._closed:
                raise Draining
            left = request.deadline - perf_counter()
            if not math.isinf(left):
                self._require_time(request.retrieval, left)
            if not self._line.push(request):
                raise queue_full(self._max_waiting, self._seconds_of_line())
            self._live[request] = True

    def cancel(self, request: PendingRequest) -> bool:
        """True if it still waited: it is gone. False if its end is told, or was."""
        with self._lock:
            waited = self._line.remove(request)
            if waited:
                del self._live[request]
            elif request in self._live:
                self._live[request] = False
            return waited

    def close(self) -> None:
        """Takes nothing in from now on; what was taken in is finished."""
        with self._lock:
            self._closed = True
            self._line.close()

    def join(self, timeout: float) -> bool:
        """After `close`: True once all threads have ended."""
        end = perf_counter() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    def _seconds_of_line(self) -> float:
        """Until what is ahead and all that waits has been answered, as predicted."""
        before, buckets = self._line.before("LOW"), self._generation.batch_buckets
        return self._times.behind(self._work.horizon(), before, buckets).after

    def _seconds_alone(self, request: PendingRequest) -> float:
        """To its reply if it formed a batch now, as predicted."""
        return self._work.needed(request.retrieval.profile, self._generation.batch_buckets[0])

    def _require_time(self, retrieval: Retrieval, left: float) -> None:
        """By what is waiting now: it would be in the last batch of its profile."""
        buckets = self._generation.batch_buckets
        before = self._line.before(retrieval.priority)
        full, beside = divmod(before.pop(retrieval.profile, 0), buckets[-1])
        before[retrieval.profile] = full * buckets[-1]
        ahead = self._times.behind(self._work.horizon(), before, buckets)
        bucket = bucket_for(beside + 1, buckets)
        if self._times.too_late(retrieval.profile, bucket, ahead, left):
            needed = ahead.behind(self._times.predict(retrieval.profile, bucket))
            raise unmeetable(left, needed.after)

    def _thread(
        self,
        stage: StageName,
        next_batch: Callable[[], bool],
        close: Callable[[], None] | None,
    ) -> threading.Thread:
        # Post computes on the host, and is who waits for the device and reads its times.
        works_in: Lane | Clock = self._clock if stage == "post" else self._lanes[stage]

        def run() -> None:
            name_this_thread(f"grace-{stage}")
            try:
                with works_in.working():
                    while next_batch():
                        pass
            except BaseException as error:  # noqa: BLE001, whatever ends a stage ends the service
                self._die(stage, error)
            if close is not None:
                close()

        return threading.Thread(target=run, name=f"grace-{stage}", daemon=True)

    def _input_next(self) -> bool:
        leaving = self._line.take()
        if leaving is None:
            return False
        self._turn_away(leaving)
        if not leaving.requests:
            return True
        bound = self._bind(leaving.requests)
        self._work.formed(bound)
        carried = self._attempt("input", Carried(bound, bound, (), ()), self._read_all)
        if carried is not None:
            self._end((), carried.batch.failures)
            if carried.batch.requests:
                self._to_features.put(carried)
            else:
                self._over(bound)
        return True

    def _features_next(self) -> bool:
        given = self._to_features.take()
        if given is None:
            return False
        carried = self._attempt("features", given, self._stages.features)
        if carried is not None:
            self._to_generate.put(carried)
        return True

    def _generate_next(self) -> bool:
        given = self._to_generate.take()
        if given is None:
            return False
        if not self._is_wanted(given.batch.input):
            self._give_up(given)
            return True
        self._work.taken(given.bound)
        self._line.wake()
        carried = self._attempt("generate", given, self._stages.generate)
        if carried is not None:
            if self._lanes["generate"].passed(carried.times[-1].end):
                self._work.generated(given.bound)
            self._to_post.put(carried)
        return True

    def _post_next(self) -> bool:
        given = self._to_post.take()
        if given is None:
            return False
        self._clock.wait_for(given.times[-1].end)
        self._work.posted(given.bound)
        self._line.wake()
        spans = self._spans(given.times)
        carried = self._attempt("post", given, lambda batch: self._answer_all(batch, spans))
        if carried is not None:
            post = carried.times[-1]
            self._work.ended(given.bound)
            self._done(carried.batch, (*spans, Span("post", post.begin, post.end)))
        return True

    def _bind(self, requests: tuple[PendingRequest, ...]) -> RequestBatch:
        name = requests[0].retrieval.profile
        return RequestBatch(
            pair=self._pair(),
            profile_name=name,
            profile=self._generation.profiles[name],
            bucket=bucket_for(len(requests), self._generation.batch_buckets),
            requests=requests,
            formed=perf_counter(),
        )

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
        self, stage: StageName, given: Carried[Given], function: Callable[[Given], Made]
    ) -> Carried[Made] | None:
        """The stage's work on a batch; None if the batch has failed and its requests have ended."""
        lane = self._lanes[stage]
        if given.times:
            lane.go_after(given.times[-1].end)
        begin = lane.mark()
        try:
            made = function(given.batch)
        except Exception as error:  # fails one batch, unless the stage is broken
            if self._failed[stage].broken_by(error, given.bound):
                raise
            lane.keep(given)
            self._batch_failed(stage, given.bound, error)
            return None
        self._failed[stage].clear()
        timed = Timed(stage, begin, lane.mark())
        return Carried(given.bound, made, (*given.times, timed), (*given.held, given.batch))

    def _batch_failed(self, stage: StageName, bound: RequestBatch, error: Exception) -> None:
        self._over(bound)
        self._end((), [Failure(request, InternalError()) for request in bound.requests])
        # Only now: a log that nobody reads must not hold back the callers.
        ids = [request.retrieval.request_id for request in bound.requests]
        fields = {"event": "batch_failed", "stage": stage, "requests": ids}
        _LOG.error("a batch failed", exc_info=error, extra=fields)

    def _is_wanted(self, batch: InputBatch) -> bool:
        now = perf_counter()
        with self._lock:
            return any(each.deadline > now and self._live.get(each) for each in batch.requests)

    def _give_up(self, given: Carried[FeatureBatch]) -> None:
        """Nobody waits for it: each was cancelled, or its deadline has passed."""
        lane, now = self._lanes["generate"], perf_counter()
        lane.go_after(given.times[-1].end)
        lane.keep(given)
        self._over(given.bound)
        failures = [
            Failure(each, expired() if each.deadline <= now else Cancelled())
            for each in given.batch.input.requests
        ]
        self._end((), failures)

    def _over(self, bound: RequestBatch) -> None:
        """No stage will see it again."""
        self._work.ended(bound)
        self._line.wake()

    def _spans(self, times: tuple[Timed, ...]) -> tuple[Span, ...]:
        moments = self._clock.times([mark for each in times for mark in (each.begin, each.end)])
        pairs = zip(moments[::2], moments[1::2], strict=True)
        return tuple(
            Span(each.stage, begin, end) for each, (begin, end) in zip(times, pairs, strict=True)
        )

    def _done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        bound = answered.input.batch
        self._times.observe(bound.profile_name, bound.bucket, spans)
        if self._timeline is not None:
            self._timeline.add(bound, spans)
        self._outcomes.batch_done(answered, spans)
        self._end(answered.answers, answered.failures)

    def _turn_away(self, leaving: Departure) -> None:
        now, retry = perf_counter(), self._seconds_of_line()
        late = [
            Failure(request, turned_away(request, now, self._seconds_alone(request)))
            for request in leaving.late
        ]
        gone = [Failure(request, displaced(retry)) for request in leaving.displaced]
        self._end((), [*late, *gone])

    def _end(self, answers: Sequence[Answer], failures: Sequence[Failure]) -> None:
        """Tells of those that have not ended before, say because a stage had died."""
        with self._lock:
            answers = [each for each in answers if self._leaves(each.request)]
            failures = [each for each in failures if self._leaves(each.request)]
        if answers or failures:
            self._outcomes.ended(answers, failures)

    def _leaves(self, request: PendingRequest) -> bool:
        return self._live.pop(request, None) is not None

    def _die(self, stage: StageName, error: BaseException) -> None:
        with self._lock:
            if self._dead:
                return
            self._dead = self._closed = True
            lost = tuple(self._live)
            self._live.clear()
            self._line.abandon()
        for hand_off in (self._to_features, self._to_generate, self._to_post):
            hand_off.abandon()
        try:
            if lost:
                failures = [Failure(request, InternalError("stage_died")) for request in lost]
                self._outcomes.ended((), failures)
        finally:
            self._outcomes.died(stage, error)
            fields = {"event": "stage_died", "stage": stage}
            _LOG.critical("a stage died", exc_info=error, extra=fields)


def _require_all(
    expected: Sequence[PendingRequest],
    told: Sequence[PendingRequest],
    failures: Sequence[Failure],
) -> None:
    """A request that a stage forgets would wait for ever."""
    if set(expected) != {*told, *(failure.request for failure in failures)}:
        raise RuntimeError("a stage must tell the end of each request, and of no other")
