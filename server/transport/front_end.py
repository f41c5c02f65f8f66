"""Calls in, replies and errors out: what stands between gRPC and the pipeline.

It runs on the event loop, so it only converts and waits: bytes to a Retrieval, a Retrieval to the
pipeline, its end to bytes or to a status. Every call that comes here is counted exactly once,
whether gRPC is in this process or in those of `server/transport/relays.py`.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.server.errors import (
    Cancelled,
    DeadlineUnmeetable,
    Draining,
    InternalError,
    NotReady,
    Overloaded,
    ServiceError,
)
from grace.server.messages import Answer, Failure, PendingRequest
from grace.server.observe.logs import LOGGER
from grace.server.observe.metrics import Metrics
from grace.server.observe.request_log import RequestLog
from grace.server.server_state import Phase, ServerState
from grace.server.stages.requests import read_request, request_id_of
from grace.server.transport.call_context import Context, GrpcContext

__all__ = ["Call", "FrontEnd"]

MAX_TEXT_BYTES = 1000

RETRY_SECONDS = 1.0
"""What a caller is told if too many calls are open: who does not end them, nobody can predict."""

LOOK_AGAIN_SECONDS = 0.05

_LOG = logging.getLogger(LOGGER)


@dataclass(slots=True)
class Call:
    """What is known of a call so far; times are of `perf_counter`.

    surplus  one too many: it is refused, and its message, which may have been left out, is not read
    """

    message: bytes
    arrived: float
    deadline: float
    surplus: bool = False
    request: PendingRequest | None = None


class FrontEnd:
    """Belongs to the event loop; only `ended` may be called from other threads."""

    def __init__(
        self,
        state: ServerState,
        limits: LimitsConfig,
        generation: GenerationConfig,
        metrics: Metrics,
        request_log: RequestLog | None,
    ) -> None:
        self._state = state
        self._limits = limits
        self._generation = generation
        self._metrics = metrics
        self._request_log = request_log
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[PendingRequest, asyncio.Future[Answer | Failure]] = {}
        self._given: dict[Context, float] = {}  # since when gRPC has had their replies
        self._idle = asyncio.Event()
        self._idle.set()

    async def until_idle(self, reply_seconds: float) -> int:
        """Until every call has ended, its reply sent. Callers have so long to read theirs: the
        number of those that have not.
        """
        while self._state.open_calls > (unread := self._unread(reply_seconds)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LOOK_AGAIN_SECONDS)
        return unread

    async def retrieve(self, message: bytes, context: GrpcContext) -> bytes:
        """As gRPC calls it."""
        arrived = perf_counter()
        left = context.time_remaining()
        deadline = math.inf if left is None else arrived + left
        call = Call(message, arrived, deadline)
        self.opened(call, context)
        return await self.answer(call, context)

    def opened(self, call: Call, context: Context) -> None:
        """As soon as it is there, before `answer`: it is open until its context is done, and one
        too many or not by what is open now.
        """
        self._state.open_calls += 1
        self._idle.clear()
        context.add_done_callback(self._closed)
        call.surplus |= self._state.open_calls > self._limits.open_calls

    async def answer(self, call: Call, context: Context) -> bytes:
        """The reply. Cancelled once nobody waits for it; `context.abort` is awaited on failure."""
        try:
            reply = await self._reply(call)
        except ServiceError as error:
            failure = error
        except asyncio.CancelledError:
            self._withdrawn(call)
            raise
        except Exception as error:  # noqa: BLE001, the caller must not see its text
            _LOG.error("call failed", exc_info=error, extra={"event": "call_failed"})
            failure = InternalError()
        else:
            # Counted once the replies of its batch are on their way: it must not hold them up.
            self._loop.call_soon(self._ended, call, None, perf_counter())
            self._given[context] = perf_counter()
            return reply
        self._ended(call, failure, perf_counter())
        self._given[context] = perf_counter()
        return await context.abort(failure.code, _bounded(failure.text), failure.trailers)

    def ended(self, answers: Sequence[Answer], failures: Sequence[Failure]) -> None:
        """From the pipeline's threads: one wake-up of the event loop for all of them."""
        self._loop.call_soon_threadsafe(self._resolve, answers, failures)

    def _resolve(self, answers: Sequence[Answer], failures: Sequence[Failure]) -> None:
        ends: tuple[Answer | Failure, ...] = (*answers, *failures)
        for end in ends:
            future = self._waiting.pop(end.request, None)
            if future is not None and not future.done():
                future.set_result(end)
            elif self._request_log is not None:
                self._request_log.forget(end.request)  # its caller is gone, and it is logged

    async def _reply(self, call: Call) -> bytes:
        state = self._state
        if call.surplus:
            text = f"{self._limits.open_calls} calls are open, and no more may; try again later"
            raise Overloaded("too_many_calls", text, RETRY_SECONDS)
        if state.phase == Phase.STARTING:
            raise NotReady
        if not state.takes:
            raise Draining
        assert state.pipeline is not None
        retrieval = read_request(call.message, self._limits, self._generation)
        request = PendingRequest(retrieval, perf_counter(), call.deadline)
        call.request, future = request, self._loop.create_future()
        self._waiting[request] = future
        try:
            state.pipeline.submit(request)
        except BaseException:
            del self._waiting[request]
            raise
        end: Answer | Failure = await future
        if isinstance(end, Failure):
            raise end.error
        return end.reply

    def _withdrawn(self, call: Call) -> None:
        """The caller has gone, or its deadline has passed, while the call waited for its end."""
        if call.request is not None and self._waiting.pop(call.request, None) is not None:
            assert self._state.pipeline is not None
            self._state.pipeline.cancel(call.request)  # under way or not: nobody waits for it
        late = perf_counter() >= call.deadline - _deadline_tolerance(call)
        text = "the deadline passed before the answer was ready"
        error = DeadlineUnmeetable("deadline_exceeded", text) if late else Cancelled()
        self._ended(call, error, perf_counter())

    def _ended(self, call: Call, error: ServiceError | None, now: float) -> None:
        slack = None if math.isinf(call.deadline) else call.deadline - now
        self._metrics.ended(now - call.arrived, slack, error)
        if self._request_log is not None:
            request_id = _request_id(call, self._limits)
            self._request_log.write(request_id, call.request, now - call.arrived, error)

    def _closed(self, context: Context) -> None:
        self._given.pop(context, None)
        self._state.open_calls -= 1
        if not self._state.open_calls:
            self._idle.set()

    def _unread(self, seconds: float) -> int:
        """Calls whose replies gRPC has had for so long."""
        latest = perf_counter() - seconds
        return sum(given <= latest for given in self._given.values())


def _bounded(text: str) -> str:
    """A status travels as a header, escaped to up to thrice its size, and headers are bounded."""
    encoded = text.encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return f"{encoded[:MAX_TEXT_BYTES].decode(errors='ignore')}..."


def _deadline_tolerance(call: Call) -> float:
    """A caller's own clock ends a call first: its timeout is rounded up on its way here."""
    return 0.005 + 0.02 * (call.deadline - call.arrived)


def _request_id(call: Call, limits: LimitsConfig) -> str | None:
    """Of a refused call as well, if it can be read."""
    if call.request is not None:
        return call.request.retrieval.request_id
    if call.surplus or len(call.message) > limits.message_bytes:
        return None
    request_id = request_id_of(call.message)
    return None if request_id is None else request_id[: limits.request_id_bytes]
