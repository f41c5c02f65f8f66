"""The orderly end of a command that has temporary files or child processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Ending:
    """Whether a signal asked the command to end."""

    asked: bool = False
    in_steps: bool = False  # whether the first signal waits for `if_asked`, between two steps

    def end(self, *_: object) -> None:
        again, self.asked = self.asked, True
        if again or not self.in_steps:
            raise KeyboardInterrupt

    def if_asked(self) -> None:
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def ending_in_order() -> Iterator[Ending]:
    """Let SIGTERM and a lost terminal end the command like Ctrl-C, so that it cleans up.

    A long loop calls `if_asked` in every step: Python drops an interrupt that it raises in a
    finalizer or in a callback of its import system, and the loop would continue.

    A signal that the caller ignores stays ignored: `nohup` keeps a command without its terminal.
    """
    ending = Ending()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, ending.end)
    try:
        yield ending
    finally:
        for number in heard:
            signal.signal(number, before[number])
