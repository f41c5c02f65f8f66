"""Print reports: a line for each fact of a dataclass, a table for each group of facts."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from grace.index.coverage import Coverage
    from grace.model.checkpoints.sid_tokens import Imported

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
    """Return a row per name of the schema, and per name that it no longer has."""
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


def print_facts(*reports: Any, tables: Sequence[Table] = ()) -> None:
    """Print the fields of dataclasses. A tuple of dataclasses becomes a table, after `tables`."""
    found = [*tables]
    for report in reports:
        for name in (field.name for field in fields(report)):
            value = getattr(report, name)
            if isinstance(value, tuple) and value and is_dataclass(value[0]):
                found.append(_table(name, value))
            elif value not in (None, (), "") and not is_dataclass(value):
                print(f"{name.replace('_', ' ')}: {_shown(name, value)}")
    print_all(*found)


def print_shares(rows: Mapping[str, Mapping[str, float]]) -> None:
    heads = max(rows.values(), key=len)
    print(f"{'':<12}" + "".join(f"{head:>11}" for head in heads))
    for name, row in rows.items():
        cells = (f"{row[head]:.1%}" if head in row else "-" for head in heads)
        print(f"{name:<12}" + "".join(f"{cell:>11}" for cell in cells))


def print_imported(imported: "Imported[Any]", out: Path, checkpoint: str, as_json: bool) -> None:
    model = imported.model
    weights = sum(weight.numel() for weight in model.parameters())
    if as_json:
        facts = {"out": str(out), "checkpoint": checkpoint, "weights": weights}
        print(json.dumps({**facts, "without_token": imported.without_token}))
        return
    dtype = str(model.decoder.embed.dtype).removeprefix("torch.")
    print(f"{out}: checkpoint {checkpoint}, {weights / 1e6:,.1f} M weights as {dtype}")
    print(f"SID space {model.spec.sid_space}, codes per position {model.spec.vocab_sizes}")
    for position, codes in enumerate(imported.without_token):
        if codes:
            print(f"position {position}: {codes:,} codes have no token: give no ad such a SID")


def _table(title: str, rows: Sequence[Any]) -> Table:
    """Return a table with a row for each of these dataclasses, and a column for each field."""
    names = [field.name for field in fields(rows[0])]
    is_named = isinstance(getattr(rows[-1], names[0]), str)
    headings = (name.replace("_", " ") for name in names)
    table = plain_table(title.capitalize(), *headings, left=int(is_named))
    for row in rows:
        table.add_row(*(_shown(name, getattr(row, name)) for name in names))
    return table


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_shown(name, of)}" for key, of in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "bytes" in name:
        return f"{value / 1e6:,.2f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
