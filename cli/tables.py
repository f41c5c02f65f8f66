"""The console that commands print tables to, and the tables of several commands."""

import os
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from grace.index.coverage import Coverage

_UNBOUNDED = 500


def table_console() -> Console:
    """Return a console as wide as the terminal. In a pipe or a file no column is cut or folded."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if bounded else _UNBOUNDED)


def plain_table(title: str, *headings: str, left: int = 0) -> Table:
    """Return a table without vertical lines. Its first `left` columns hold words, not numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at < left else "right")
    return table


def coverage_table(
    after: "Coverage", before: "Coverage | None" = None, version_before: int | None = None
) -> Table:
    """Return a row per attribute and set, also of those that the schema has no longer."""
    headings = [] if before is None else [f"version {version_before}", "change, points"]
    table = plain_table("Coverage", "ads with a rule on", "share of all ads", *headings, left=1)
    old = {} if before is None else before.with_rule
    rows = {name: (after.with_rule.get(name), old.get(name)) for name in after.with_rule | old}
    everybody = None if before is None else before.for_everybody
    rows["nothing: for everybody"] = (after.for_everybody, everybody)
    for name, shares in rows.items():
        cells = ["-" if share is None else f"{share:.1%}" for share in shares]
        if before is not None:
            cells.append(
                "new" if shares[1] is None else f"{((shares[0] or 0) - shares[1]) * 100:+.1f}"
            )
        table.add_row(name, *cells[: 1 + len(headings)])
    return table


def print_all(*shown: RenderableType) -> None:
    """Print tables or Markdown, without the blanks that fill up their lines."""
    console = table_console()
    with console.capture() as captured:
        for each in shown:
            console.print(each)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
