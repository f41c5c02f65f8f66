"""End calls whose callers do not send their requests, or do not read their replies.

gRPC waits for a request, and keeps a reply, without a time limit. grpc.aio cannot end a call that
has a reply. But gRPC resets a call, and frees its memory, once nothing refers to it. Two tasks
refer to a call, so this module cancels both. One waits for the request, runs the method, then sends
the reply. The other created the first, and waits for the caller to hang up. grpc.aio also refers to
a process's first and latest call, so these two are freed later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import ReferenceType, ref

import grpc

_Task = asyncio.Task[Any]
_Creator = ReferenceType[_Task] | None
_CREATOR: ContextVar[_Creator] = ContextVar("creator", default=None)


def remember_creators(loop: asyncio.AbstractEventLoop) -> None:
    """Make every new task remember the task that created it: the end of a call cancels both."""
    loop.set_task_factory(_make_task)


def end_after(seconds: float, task: _Task, unread: Callable[[], None]) -> None:
    """After a time, call `unread` and end the call whose method runs in `task`, if still open.

    Call this in that task, when its reply is ready.
    """
    creator = _CREATOR.get()
    timer = asyncio.get_running_loop().call_later(seconds, _give_up, task, creator, unread)
    task.add_done_callback(lambda _: timer.cancel())


class UnsentRequests(grpc.aio.ServerInterceptor):
    """Ends calls whose headers have come, but whose requests do not come in time.

    At most `most` calls wait for their requests. One more ends the call that has waited longest,
    because the requests of honest callers come soon.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._waiting: dict[_Task, tuple[_Creator, asyncio.TimerHandle]] = {}  # oldest first

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Begin to wait. gRPC calls this in the call's task, before it waits for the request."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        assert handler.request_deserializer is None, "a method is given bytes"
        self._wait()
        return handler._replace(request_deserializer=self._came)

    def _wait(self) -> None:
        task, creator = asyncio.current_task(), _CREATOR.get()
        assert task is not None
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            _end(oldest, self._forget(oldest))
        timer = asyncio.get_running_loop().call_later(self._seconds / 2, self._wait_on, task)
        self._waiting[task] = creator, timer
        task.add_done_callback(self._forget)

    def _wait_on(self, task: _Task) -> None:
        """Wait for the second half of the time.

        If this process stood still in the first, the loop now reads the requests that have come.
        """
        creator, _ = self._waiting[task]
        timer = asyncio.get_running_loop().call_later(self._seconds / 2, _end, task, creator)
        self._waiting[task] = creator, timer

    def _came(self, message: bytes) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self._forget(task)
        return message

    def _forget(self, task: _Task) -> _Creator:
        creator, timer = self._waiting.pop(task, (None, None))
        if timer is not None:
            timer.cancel()
        return creator


def _give_up(task: _Task, creator: _Creator, unread: Callable[[], None]) -> None:
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
