"""Tables of the documents, in Markdown. A column is a heading and a cell.

A cell is a function of the row, or a template of its fields for `str.format`. Templates have two
more formats: `{p50_ms:ms}` shows two or three digits, `{p50_ms:fine}` hundredths. A field that is
None shows as nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, TypeAlias

from grace.bench.result_file import Row

Cell: TypeAlias = str | Callable[[Row], object]
Column: TypeAlias = tuple[str, Cell]

POWER = "{sm_clock_mhz} / {power_w}"


def origin(result: Mapping[str, Any]) -> str:
    """Return one line about what measured the rows."""
    return f"Commit {result['commit']}, {result['machine']}: `{result['command']}`.\n\n"


def table_of(rows: Iterable[Row], *columns: Column) -> str:
    cells = [[shown(cell, row) for _, cell in columns] for row in rows]
    return markdown_table([heading for heading, _ in columns], cells)


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def shown(cell: Cell, row: Row) -> str:
    """Return the text of a cell."""
    if not isinstance(cell, str):
        return str(cell(row))
    return _Template().vformat(cell, (), row).replace("****", "")  # nothing, in bold


class _Template(Formatter):
    def format_field(self, value: Any, form: str) -> str:
        if value is None:
            return ""
        if form in ("ms", "fine"):
            return ms(value) if form == "ms" or value >= 100 else f"{value:.2f}"
        return format(value, form)


def ms(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def p99(row: Row, of: str = "") -> str:
    """Return the P99 of single calls, or that of means with the number of calls in each mean."""
    means = row.get(f"{of}p99_of_means_ms")
    return ms(row.get(f"{of}p99_ms")) if means is None else f"{ms(means)} ({row[f'{of}calls']})"
