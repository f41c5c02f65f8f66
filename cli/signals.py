"""The orderly end of a command that has temporary files or child processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and a lost terminal end the command like Ctrl-C, so that it cleans up.

    A signal that the caller ignores stays ignored: `nohup` keeps a command without its terminal.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ending = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, before[number])
