"""The cells of the performance tables: times, pairs, ratios, and how a row becomes a line."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from grace.bench.gpu.results import Row
from grace.bench.result_tables import markdown_table

Cell: TypeAlias = str | Callable[[Row], object]
"""A field of a row, or a function of the row."""


def table_of(rows: Iterable[Row], *columns: tuple[str, Cell]) -> str:
    cells = [
        [str(row[cell] if isinstance(cell, str) else cell(row)) for _, cell in columns]
        for row in rows
    ]
    return markdown_table([heading for heading, _ in columns], cells)


def power(row: Row, of: str = "") -> str:
    return f"{row[f'{of}sm_clock_mhz']} / {row[f'{of}power_w']}"


def p99(row: Row, of: str = "") -> str:
    """The P99 of single calls; or of means, followed by the number of calls in each."""
    means = row.get(f"{of}p99_of_means_ms")
    if means is not None:
        return f"{ms(means)} ({row[f'{of}calls']})"
    return ms(row.get(f"{of}p99_ms"))


def pair(p50: float | None, p99: float | None) -> str:
    return f"{ms(p50)}/{ms(p99)}"


def ms(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def fine(value: float) -> str:
    """For numbers that are compared to a hundredth."""
    return f"{value:.2f}" if value < 100 else ms(value)


def ratio(paper: float, ours: float) -> str:
    return f"{paper / ours:.1f}x"
