"""Print reports: a line for each fact of a dataclass, a table for each group of facts."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_facts(*reports: Any, tables: "Sequence[Table]" = ()) -> None:
    """Print the fields of dataclasses. A tuple of dataclasses becomes a table, after `tables`."""
    from grace.cli.tables import print_all

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
    """Print the shares of each row by their headings."""
    heads = max(rows.values(), key=len)
    print(f"{'':<12}" + "".join(f"{head:>11}" for head in heads))
    for name, row in rows.items():
        cells = (f"{row[head]:.1%}" if head in row else "-" for head in heads)
        print(f"{name:<12}" + "".join(f"{cell:>11}" for cell in cells))


def _table(title: str, rows: Sequence[Any]) -> "Table":
    """Return a table with a row for each of these dataclasses, and a column for each field."""
    from grace.cli.tables import plain_table

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
