"""`grace inspect`: print what a snapshot holds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from grace.cli.options import AsJson
from grace.configs.options import Argument

if TYPE_CHECKING:
    from rich.table import Table

    from grace.index.summary import IndexSummary


def inspect(
    snapshot: Annotated[Path, Argument("ROOT (its current version) or ROOT/VERSION.")],
    version: Annotated[int | None, "Another version of ROOT."] = None,
    eligibility: Annotated[
        str, "What decoding tests: exact, cd, union, static or dynamic."
    ] = "exact",
    as_json: AsJson = False,
) -> None:
    """Print a snapshot's index summary: counts per level, ads per SID, matchers or posting lists.

    `--eligibility` is as for `grace serve`: what decoding tests follows from the snapshot.

    The first line lists the versions of ROOT, and which one is current. `grace admin status` shows
    the one that a server has pinned.

    Example: `grace inspect snapshots`
    """
    from grace.configs.eligibility import Eligibility
    from grace.index.storage import load_snapshot, readable_current, root_of, versions
    from grace.index.summary import summarize

    chosen = Eligibility.of(eligibility)
    summary = summarize(load_snapshot(snapshot, version, eligibility=chosen))
    there, current = versions(root_of(snapshot)), readable_current(root_of(snapshot))
    if as_json:
        listed = {"versions": there, "current_version": current}
        print(json.dumps(asdict(summary) | listed, indent=2))
    else:
        named = "none of them" if current is None else current
        print(f"versions here: {', '.join(map(str, there))}; current: {named}")
        print_summary(summary)


def print_summary(summary: "IndexSummary") -> None:
    """Print each fact on a line, and a table for each group of facts of a kind."""
    from grace.cli.tables import coverage_table, table_console

    console, tables = table_console(), [coverage_table(summary.coverage)]
    parts = (summary,) if summary.exact is None else (summary, summary.exact)
    for part in parts:
        for name in (field.name for field in fields(part)):
            value = getattr(part, name)
            if isinstance(value, tuple) and value and is_dataclass(value[0]):
                tables.append(_table(name, value))
            elif value not in (None, ()) and not is_dataclass(value):
                line = f"{name.replace('_', ' ')}: {_shown(name, value)}"
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    for table in tables:
        console.print(table)


def _table(title: str, rows: Sequence[Any]) -> "Table":
    """Return a table with a row for each of these dataclasses, and a column for each field."""
    from grace.cli.tables import plain_table

    names = [field.name for field in fields(rows[0])]
    is_named = isinstance(getattr(rows[0], names[0]), str)
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
    if "bytes" in name:
        return f"{value / 1e6:,.2f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"
    if isinstance(value, float):
        return f"{value:.3f}"
    return value if isinstance(value, str) else f"{value:,}"
