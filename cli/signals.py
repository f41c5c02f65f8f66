"""The orderly end of a command that has temporary files or child processes."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_in_order() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and a lost terminal end the command like Ctrl-C, so that it cleans up.

    Yield a function that raises the interrupt again after a signal; a long loop calls it in every
    step. Python drops an interrupt that it raises in a finalizer or in a callback of its import
    system, and the loop would go on.

    A signal that the caller ignores stays ignored: `nohup` keeps a command without its terminal.
    """
    ended = False

    def end(*_: object) -> NoReturn:
        nonlocal ended
        ended = True
        raise KeyboardInterrupt

    def end_if_asked() -> None:
        if ended:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ending = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in ending:
        signal.signal(number, end)
    try:
        yield end_if_asked
    finally:
        for number in ending:
            signal.signal(number, before[number])
