"""Kill a writer at every one of its file-system calls, and look at what each death leaves."""

import itertools
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

Given = TypeVar("Given")

CALLS = ("close", "fsync", "listdir", "mkdir", "open", "rename", "replace", "rmdir", "unlink")


def deaths_of(
    prepare: Callable[[], Given], write: Callable[[Given], object], check: Callable[[Given], object]
) -> int:
    """Let forks write that die by SIGKILL in their N-th call, N = 1, 2, ... until one gets through.

    prepare  makes what the next writer gets
    check    looks at what it has left; it may have got through
    """
    for number in itertools.count(1):
        given = prepare()
        child = os.fork()
        if child == 0:
            try:
                _die_in_call(number)
                write(given)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"the writer failed by itself at call {number}"
        check(given)
        if code == 0:
            return number - 1
    raise AssertionError


def _die_in_call(number: int) -> None:
    """Arm this process: its N-th call from now on is its last, and may be half done."""
    count = itertools.count(1)
    real_write = os.write

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return wrapped

    def write(file: int, content: memoryview) -> int:
        if next(count) == number:
            real_write(file, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real_write(file, content)

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    os.__dict__["write"] = write
    os.__dict__["writev"] = lambda file, parts: write(file, memoryview(b"".join(parts)))
