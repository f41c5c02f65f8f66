"""The console that commands print tables to."""

import os
import sys

from rich.console import Console

_UNBOUNDED = 500


def table_console() -> Console:
    """Return a console as wide as the terminal. In a pipe or a file no column is cut or folded."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if bounded else _UNBOUNDED)
