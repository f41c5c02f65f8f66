"""Calls in, replies and errors out: the link between gRPC and the pipeline.

It runs on the event loop, so it only converts and waits: bytes to a Retrieval, a Retrieval to the
pipeline, an outcome to bytes or to a status. Every call is counted exactly once, whether gRPC is in
this process or in those of `server/transport/relays/relays.py`.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from grpc import StatusCode

from grace.configs.serving import LimitsConfig, ServingConfig
from grace.server.errors import SHED_REASONS, ServiceError, cancelled, internal
from grace.server.messages import (
    STAGE_NAMES,
    AnsweredBatch,
    Failure,
    Outcome,
    PendingRequest,
    Span,
    queue_seconds,
)
from grace.server.observe.logs import LOG
from grace.server.observe.metrics import Metrics
from grace.server.server_state import ServerState
from grace.server.stages.requests import read_request, request_id_of
from grace.server.transport.listener.grpc_listener import Context, GrpcContext, IncomingCall

MAX_TEXT_BYTES = 1000

UNREAD_LOG_SECONDS = 10.0  # the least time between two lines about replies that were not read

RETRY_SECONDS = 1.0
"""The advice if too many calls are open: when callers will end them cannot be predicted."""


@dataclass(slots=True)
class Call:
    """A call that is open, and whether its message is read."""

    given: IncomingCall
    surplus: bool  # it is one too many: it is refused, and its message is not read
    request: PendingRequest | None = None  # None until the message has been read


class FrontEnd:
    """Belongs to the event loop, but the pipeline's threads call `batch_done` and `ended`."""

    def __init__(self, state: ServerState, config: ServingConfig, metrics: Metrics) -> None:
        self._state = state
        self._limits, self._generation = config.limits, config.generation
        self._metrics = metrics
        self._log_requests = config.logs.requests
        self._loop = asyncio.get_running_loop()
        self._log_unread_at = -math.inf
        self._latest = -math.inf  # when a call came in
        # set while no call is open: every reply was sent, or its call was reset
        self.idle = asyncio.Event()
        self.idle.set()
        self._uncounted: deque[tuple[AnsweredBatch, tuple[Span, ...]]] = deque()

    async def until_quiet(self, seconds: float, most: float) -> None:
        """Wait until no call has come in for `seconds`, but not longer than `most`."""
        end = perf_counter() + most
        while (now := perf_counter()) < min(end, self._latest + seconds):
            await asyncio.sleep(min(end, self._latest + seconds) - now)

    async def retrieve(self, message: bytes, context: GrpcContext) -> bytes:
        """Serve a call of gRPC in this process."""
        return await self.answer(self.opened(context.incoming(message), context), context)

    def opened(self, given: IncomingCall, context: Context) -> Call:
        """Count a call as open until its context is done. Call this as soon as the call comes in,
        before `answer`: the calls that are open now decide whether it is one too many."""
        self._state.open_calls += 1
        self._latest = perf_counter()
        self.idle.clear()
        context.add_done_callback(partial(self._closed, given.connection))
        return Call(given, surplus=self._state.open_calls > self._limits.open_calls)

    async def answer(self, call: Call, context: Context) -> bytes:
        """Return the reply, or await `context.abort`. Cancel this when the caller has gone."""
        try:
            reply = await self._reply(call)
        except ServiceError as error:
            # The traceback would keep this frame, and the frame the error.
            failure = error.with_traceback(None)
        except asyncio.CancelledError:
            self._withdrawn(call)
            raise
        except Exception as error:  # noqa: BLE001, a caller must not see its text
            LOG.error("call_failed", exc_info=error)
            failure = internal()
        else:
            self._loop.call_soon(self._ended, call, None, perf_counter())
            return reply
        self._ended(call, failure, perf_counter())
        return await context.abort(failure.code, _bounded(failure.text), failure.trailers)

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        """Count the batch later, so that counting does not delay its replies."""
        self._uncounted.append((answered, spans))

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Wake the event loop once for all of them."""
        self._loop.call_soon_threadsafe(self._complete, outcomes)

    def _complete(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            # The outcome has the request: with its future the request would be in a cycle.
            completion, outcome.request.completion = outcome.request.completion, None
            if completion is not None and not completion.done():  # done: its caller has gone
                completion.set_result(outcome)
        # The tasks that were just woken send their replies in the loop's next round.
        self._loop.call_soon(self._loop.call_soon, self._count_batches)

    def _count_batches(self) -> None:
        while self._uncounted:
            self._metrics.batch_done(*self._uncounted.popleft())

    async def _reply(self, call: Call) -> bytes:
        state = self._state
        if call.surplus:
            most = f"{self._limits.open_calls} calls are open, and no more may (limits.open_calls)"
            raise ServiceError("too_many_calls", f"{most}; try again later", None, RETRY_SECONDS)
        state.require_takes()
        assert state.pipeline is not None
        retrieval = read_request(call.given.message, self._limits, self._generation)
        completion: asyncio.Future[Outcome] = self._loop.create_future()
        call.request = PendingRequest(
            retrieval, perf_counter(), call.given.deadline, call.given.connection, completion
        )
        state.pipeline.scheduler.submit(call.request)
        outcome = await completion
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome.reply

    def _withdrawn(self, call: Call) -> None:
        """The caller has gone, or the deadline has passed, while the call waited."""
        if call.request is not None:
            assert self._state.pipeline is not None
            self._state.pipeline.scheduler.cancel(call.request)
        given = call.given
        # It may end earlier by its caller's clock: timeouts are rounded up on the way.
        tolerance = 0.005 + 0.02 * (given.deadline - given.arrived)
        late = perf_counter() >= given.deadline - tolerance
        text = "the deadline passed before the answer was ready"
        error = ServiceError("deadline_exceeded", text) if late else cancelled()
        self._ended(call, error, perf_counter())

    def _ended(self, call: Call, error: ServiceError | None, now: float) -> None:
        given = call.given
        slack = None if math.isinf(given.deadline) else given.deadline - now
        self._metrics.ended(now - given.arrived, slack, error)
        if error is not None and error.reason in SHED_REASONS:
            assert call.request is not None
            self._metrics.shed[call.request.retrieval.priority].inc()
        # The text of such a failure refers its caller to the log.
        internal_fault = error is not None and error.code is StatusCode.INTERNAL
        if self._log_requests or internal_fault:
            _log_end(call, _request_id(call, self._limits), now - given.arrived, error)

    def _closed(self, connection: str, context: Context) -> None:
        if context.unread:
            self._metrics.unread.inc()
            now = self._loop.time()
            if now >= self._log_unread_at:  # a client that reads nothing could fill the log
                self._log_unread_at = now + UNREAD_LOG_SECONDS
                LOG.warning("replies_unread", extra={"connection": connection})
        self._state.open_calls -= 1
        if not self._state.open_calls:
            self.idle.set()


def _log_end(
    call: Call, request_id: str | None, seconds: float, error: ServiceError | None
) -> None:
    """Write how a call ended, and where its time went if its batch has passed all stages."""
    fields: dict[str, object] = {
        "request_id": request_id,
        "code": "OK" if error is None else error.code.name,
        "reason": None if error is None else error.reason,
        "field": None if error is None else error.field,
        "batch_size": None,
        "total_us": round(seconds * 1e6),
        "queue_us": None,
        **dict.fromkeys(f"{stage}_us" for stage in STAGE_NAMES),
    }
    request = call.request
    if request is not None and request.spans:
        (waited,) = queue_seconds((request,), request.spans)
        fields.update(batch_size=request.batch_size, queue_us=round(waited * 1e6))
        for span in request.spans:
            fields[f"{span.stage}_us"] = round((span.end - span.begin) * 1e6)
    LOG.info("request", extra=fields)


def _bounded(text: str) -> str:
    """Cut a text that is too long for a status, a header of limited size after escaping."""
    encoded = text.encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return f"{encoded[:MAX_TEXT_BYTES].decode(errors='ignore')}..."


def _request_id(call: Call, limits: LimitsConfig) -> str | None:
    """Return the request id, also of a refused call if its message can be read."""
    if call.request is not None:
        return call.request.retrieval.request_id
    if call.surplus or len(call.given.message) > limits.message_bytes:
        return None
    request_id = request_id_of(call.given.message)
    return None if request_id is None else request_id[: limits.request_id_bytes]
