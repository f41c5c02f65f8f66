"""Work that is repeated in a thread while a block runs, such as taking samples."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grace.configs.errors import GraceError


@contextmanager
def in_background(step: Callable[[], object], seconds: float = 0.0) -> Iterator[list[str]]:
    """Call `step` again and again inside `with`, until it fails; wait for `seconds` between calls.

    Yield the faults, at most one. It is known after the block: then the last call has ended.
    """
    faults: list[str] = []
    stop = threading.Event()

    def repeat() -> None:
        try:
            step()
            while not stop.wait(seconds):
                step()
        except GraceError as error:
            faults.append(str(error))

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        stop.set()
        thread.join()
