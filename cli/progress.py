"""One progress bar per step of long work, on standard error and only where a person watches."""

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
)

__all__ = ["ShowProgress", "progress_bars"]


class ShowProgress(Protocol):
    """`latest` is what the step says of itself, such as the loss."""

    def __call__(self, step: str, done: int, total: int, latest: str = "", /) -> None: ...


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """Yields `progress(step, done, total)`."""
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[latest]}"),
        console=console,
        disable=not console.is_terminal,
    ) as bars:

        def progress(step: str, done: int, total: int, latest: str = "", /) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total, latest=latest)
            bars.update(tasks[step], completed=done, latest=latest)

        yield progress
