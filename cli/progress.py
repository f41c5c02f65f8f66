"""Progress on standard error: bars on a terminal, otherwise a line now and then if it is long."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column


class ShowProgress(Protocol):
    """`latest` is a step's own text, such as the loss."""

    def __call__(self, step: str, done: int, total: int, latest: str = "", /) -> None: ...


_LINE_SECONDS = 20.0
_LINE_SHARE = 0.05  # of the time so far, between the lines of long work


def note(line: str) -> None:
    """Print a line on standard error, above the bars if there are any."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """Yields `progress(step, done, total)`."""
    tasks: dict[str, rich_progress.TaskID] = {}
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description:<14}"),
        rich_progress.BarColumn(bar_width=12),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        # Only this text wraps in a narrow terminal, so the times stay whole.
        rich_progress.TextColumn("{task.fields[latest]}", table_column=Column()),
        console=console,
    ) as bars:

        def progress(step: str, done: int, total: int, latest: str = "", /) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total, completed=done, latest=latest)
            bars.update(tasks[step], completed=done, latest=latest)

        yield progress


def _lines(console: Console) -> ShowProgress:
    last_line = time.monotonic()
    begun: dict[str, tuple[float, int]] = {}  # when a step began, and how much was done then

    def progress(step: str, done: int, total: int, latest: str = "", /) -> None:
        nonlocal last_line
        now = time.monotonic()
        began, before = begun.setdefault(step, (now, done))
        elapsed = now - began
        if now - last_line >= max(_LINE_SECONDS, _LINE_SHARE * elapsed):
            last_line = now
            line = f"{step}: {done:,} of {total:,}{latest and f', {latest}'}, {elapsed:.0f} s"
            if done > before:
                left = elapsed / (done - before) * (total - done)
                line += f", {_duration(left)} left"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    return progress


def _duration(seconds: float) -> str:
    """Return a time as 45 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
