"""The orderly end of a command that has temporary files or child processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and a lost terminal end the command like Ctrl-C, so that it cleans up."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
