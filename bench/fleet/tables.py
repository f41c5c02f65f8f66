"""The tables of `grace bench fleet`, on the screen and in docs/fleet.md."""

from collections.abc import Sequence

from grace.bench.gpu.pages.serve_tables import load_columns
from grace.bench.markdown import ms, table_of
from grace.bench.result_file import Row


def fleet_tables(rows: Sequence[Row]) -> str:
    """Return a table of all loads, and one that compares them with one server without Envoy."""
    loads = table_of(
        rows,
        ("load", "{measure}"),
        ("through", "{variant}"),
        *load_columns(
            ("Envoy's CPU, ms", lambda x: ms(x.get("envoy_cpu_ms"))),
            ("repeated by Envoy", lambda x: x.get("envoy_retries", "")),
            unit=", ms",
        ),
    )
    through = [row for row in rows if row["variant"] != "direct"]
    compared = table_of(
        [{**row, "direct": direct} for row in through if (direct := _direct(rows, row))],
        ("load", "{measure}"),
        ("through", "{variant}"),
        ("type", "{precision}"),
        (
            "rate",
            lambda x: f"**{_rate(x) / _rate(x['direct']):.2f}x**" if _rate(x["direct"]) else "",
        ),
        ("P50, ms more", lambda x: _more(x, "p50_ms")),
        ("P99, ms more", lambda x: _more(x, "p99_ms")),
    )
    return f"{loads}\n**Against one server without Envoy**\n\n{compared}"


def _direct(rows: Sequence[Row], row: Row) -> Row | None:
    wanted = {"variant": "direct", "measure": row["measure"], "precision": row["precision"]}
    return next((each for each in rows if wanted.items() <= each.items()), None)


def _rate(row: Row) -> float:
    rate: float = row["answered_rps"] if "answered_rps" in row else row["rps"]
    return rate


def _more(row: Row, name: str) -> str:
    own, direct = row[name], row["direct"][name]
    return "" if own is None or direct is None else f"{own - direct:+.1f}"
