"""One progress bar per step of long work, on standard error and only where a person watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["progress_bars"]


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yields `progress(step, done, total)`."""
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:

        def progress(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        yield progress
