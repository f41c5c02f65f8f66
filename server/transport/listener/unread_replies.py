"""End calls whose callers do not read their replies.

gRPC keeps a reply until its caller reads it, and grpc.aio cannot end a call that has a reply. But
gRPC resets a call without references, and frees its memory. Two tasks refer to a call. One runs its
method, then sends the reply. The other created the first, and waits for the caller to hang up.
grpc.aio itself also refers to a process's first and latest call, which are freed later.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import ReferenceType, ref

_Task = asyncio.Task[Any]
_CREATOR: ContextVar[ReferenceType[_Task] | None] = ContextVar("creator", default=None)


def remember_creators(loop: asyncio.AbstractEventLoop) -> None:
    """Make every new task remember the task that created it, which `end_after` needs."""
    loop.set_task_factory(_make_task)


def end_after(seconds: float, task: _Task, unread: Callable[[], None]) -> None:
    """After a time, call `unread` and end the call whose method runs in `task`, if still open.

    Call this in that task, when its reply is ready.
    """
    creator = _CREATOR.get()
    timer = asyncio.get_running_loop().call_later(seconds, _end, task, creator, unread)
    task.add_done_callback(lambda _: timer.cancel())


def _end(task: _Task, creator: ReferenceType[_Task] | None, unread: Callable[[], None]) -> None:
    unread()
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
