"""Progress on standard error: bars on a terminal, otherwise a line every 20 s.

So a log shows that long work goes on, and short work stays silent.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class ShowProgress(Protocol):
    """`latest` is a step's own text, such as the loss."""

    def __call__(self, step: str, done: int, total: int, latest: str = "", /) -> None: ...


_LINE_SECONDS = 20.0


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """Yields `progress(step, done, total)`."""
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    with Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}"),
        console=console,
    ) as bars:

        def progress(step: str, done: int, total: int, latest: str = "", /) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total, latest=latest)
            bars.update(tasks[step], completed=done, latest=latest)

        yield progress


def _lines(console: Console) -> ShowProgress:
    begin = time.monotonic()
    last_line = begin

    def progress(step: str, done: int, total: int, latest: str = "", /) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line >= _LINE_SECONDS:
            last_line = now
            line = f"{step}: {done:,} of {total:,}{latest and f', {latest}'}, {now - begin:.0f} s"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    return progress
