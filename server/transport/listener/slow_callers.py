"""End calls whose callers do not send their requests, or do not read their replies; bound streams.

gRPC waits for a request, and keeps a reply, without a time limit. grpc.aio cannot end a call that
has a reply. But gRPC resets a call, and frees its memory, once nothing refers to it. Two tasks
refer to a call, so this module cancels both. One waits for the request, runs the method, then sends
the reply. The other created the first, and waits for the caller to hang up. grpc.aio also refers to
a process's first and latest call, so these two are freed later.

A call that its method aborts would also stay for a while, until a garbage collection.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, Protocol, TypeVar
from weakref import ReferenceType, ref

import grpc

CONNECTIONS_TO_FILL = 64
"""How many connections it takes to hold all streams: each may hold only its share."""

LEAST_SHARE = 4  # streams that each connection may hold, however small its share

REFUSAL = "too many streams like this are open; close some, or try again later"

_Message = TypeVar("_Message")
_Reply = TypeVar("_Reply")
_Task = asyncio.Task[Any]
_Creator = ReferenceType[_Task] | None
_CREATOR: ContextVar[_Creator] = ContextVar("creator", default=None)


def remember_creators(loop: asyncio.AbstractEventLoop) -> None:
    """Make every new task remember the task that created it: the end of a call cancels both."""
    loop.set_task_factory(_make_task)


def end_after(seconds: float, task: _Task, unread: Callable[[], None] | None = None) -> None:
    """After a time, call `unread` and end the call whose method runs in `task`, if still open.

    Call this in that task, when its reply is ready.
    """
    creator = _CREATOR.get()
    timer = asyncio.get_running_loop().call_later(seconds, _end_unread, task, creator, unread)
    task.add_done_callback(lambda _: timer.cancel())


def freed_if_aborted(
    method: Callable[[_Message, Any], Coroutine[Any, Any, _Reply]],
) -> Callable[[_Message, Any], Coroutine[Any, Any, _Reply]]:
    """Wrap the method so that its calls are freed as soon as it aborts them.

    The call's context keeps the error, the error's traceback keeps the method's frames, and these
    keep the context. Python may collect this cycle late, because it does not see gRPC's 20 KiB of
    the call.
    """

    async def run(message: _Message, context: Any) -> _Reply:
        try:
            return await method(message, context)
        except grpc.aio.AbortError as error:
            del message, context
            raise error.with_traceback(None) from None

    return run


class StreamContext(Protocol):
    def peer(self) -> str: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...


class EndlessStreams:
    """Counts the open streams of one kind, health watches or reflection. Belongs to the event loop.

    They may stay open as long as their connections, so their number has a bound.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._share = max(LEAST_SHARE, most // CONNECTIONS_TO_FILL)
        self._open: Counter[str] = Counter()  # by connection

    async def admit(self, context: StreamContext) -> None:
        """Count a stream as open until its task ends, or refuse it. Call this in its task."""
        connection, task = context.peer(), asyncio.current_task()
        assert task is not None
        if self._open.total() >= self._most or self._open[connection] >= self._share:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSAL)
        self._open[connection] += 1
        task.add_done_callback(lambda _: self._ended(connection))

    def _ended(self, connection: str) -> None:
        self._open -= Counter((connection,))  # which drops connections without streams


class UnsentRequests:
    """Ends calls whose headers have come, but whose requests do not come in time.

    A call has at least this time, and at most twice as long. At most a number of calls may wait for
    their requests. One more ends the oldest, because the requests of honest callers come soon.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._early: dict[_Task, _Creator] = {}  # waiting since before the last sweep, oldest first
        self._late: dict[_Task, _Creator] = {}  # and since then
        self._sweeps = False

    def wait(self) -> None:
        """Wait for the request of the current task's call."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._early) + len(self._late) >= self._most:
            oldest = next(iter(self._early or self._late))
            _end(oldest, self._forget(oldest))
        self._late[task] = _CREATOR.get()
        task.add_done_callback(self._ended)
        if not self._sweeps:
            self._sweep_later()

    def came(self, message: bytes) -> bytes:
        """Note that the current task's call has its request: the deserializer of the methods."""
        task = asyncio.current_task()
        assert task is not None
        self._forget(task)
        return message

    def _ended(self, task: _Task) -> None:
        """End the rest of a call that has ended without a whole request; gRPC would keep it.

        If the call was cancelled, its creator is ending already. A second cancellation would make
        gRPC print a traceback.
        """
        creator = self._forget(task)
        if not task.cancelling():
            _end(task, creator)

    def _forget(self, task: _Task) -> _Creator:
        return self._late.pop(task, None) or self._early.pop(task, None)

    def _sweep_later(self) -> None:
        due = self._loop.time() + self._seconds
        self._sweeps = True
        self._loop.call_at(due, self._sweep, due)

    def _sweep(self, due: float) -> None:
        # If this process stood still, requests have come that the loop has not read yet.
        if self._loop.time() < due + self._seconds / 2:
            overdue, self._early, self._late = self._early, self._late, {}
            for task, creator in overdue.items():
                _end(task, creator)
        self._sweeps = False
        if self._early or self._late:
            self._sweep_later()


class WatchedMethods(grpc.GenericRpcHandler):
    """Methods of a service, whose calls wait for their requests for a limited time.

    Each method must have `unsent.came` as its request deserializer.
    """

    def __init__(self, methods: grpc.GenericRpcHandler, unsent: UnsentRequests) -> None:
        self._methods = methods
        self._unsent = unsent

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return a call's method. gRPC asks for it in the call's task, before the request."""
        method = self._methods.service(handler_call_details)
        if method is not None:
            self._unsent.wait()
        return method


def _end_unread(task: _Task, creator: _Creator, unread: Callable[[], None] | None) -> None:
    if unread is not None:
        unread()
    _end(task, creator)


def _end(task: _Task, creator: _Creator) -> None:
    waits = None if creator is None else creator()
    if waits is not None:
        waits.cancel()
    task.cancel()


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    *,
    context: Context | None = None,
    **named: Any,
) -> _Task:
    creator = asyncio.current_task(loop)
    if creator is not None:
        context = copy_context() if context is None else context
        context.run(_CREATOR.set, ref(creator))
    return asyncio.Task(coroutine, loop=loop, context=context, **named)
