"""The console that commands print tables to."""

import os
import sys

from rich.console import Console
from rich.markdown import Markdown

_UNBOUNDED = 500


def table_console() -> Console:
    """Return a console as wide as the terminal. In a pipe or a file no column is cut or folded."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if bounded else _UNBOUNDED)


def print_markdown(text: str) -> None:
    """Print Markdown as the terminal shows it, without the blanks that fill up its lines."""
    console = table_console()
    with console.capture() as captured:
        console.print(Markdown(text))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
