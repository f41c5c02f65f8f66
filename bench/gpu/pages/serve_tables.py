"""The tables of servers under load: of one in docs/performance.md, of several in docs/fleet.md."""

from collections.abc import Sequence
from statistics import median

from grace.bench.markdown import Column, markdown_table, ms, table_of
from grace.bench.result_file import Row, rows_of


def errors(row: Row) -> int:
    """Calls that failed, and those without a reply long after the load."""
    return int(row["errors"] + row.get("withdrawn", 0))


def load_columns(*between: Column, unit: str = "") -> Sequence[Column]:
    """Return the columns of every load, with others in front of the last two."""
    return (
        ("type", "{precision}"),
        ("offered/s", lambda x: f"{x['rps']:g}" if x["measure"] in ("idle", "load") else ""),
        ("answered/s", lambda x: f"{x.get('answered_rps', x['rps']):g}"),
        (f"P50{unit}", "**{p50_ms:ms}**"),
        (f"P99{unit}", "**{p99_ms:ms}**"),
        ("errors", errors),
        *between,
        (f"late P99{unit}", "{client_late_p99_ms:ms}"),
        ("valid", lambda x: "yes" if x["valid"] else "no"),
    )


def serve_tables(rows: Sequence[Row]) -> str:
    stages = ("queue", "input", "features", "generate", "post", "overhead")
    served_rows = rows_of(rows, "idle", "alone", "load", "saturation")
    served = table_of(
        served_rows,
        ("load", "{measure}"),
        ("mode", "{mode}"),
        *load_columns(
            *((name, f"{{stages_p50_ms[{name}]:ms}}") for name in stages),
            ("gRPC alone", lambda x: ms(x["grpc_p50_ms"]) if "grpc_p50_ms" in x else ""),
        ),
        ("generate busy", lambda x: f"{x['generate_busy']:.1%}" if "generate_busy" in x else ""),
    )
    parts = ["Times in ms; the stages' are P50.\n", served] if served_rows else []
    if swaps := rows_of(rows, "swap"):
        parts += ["**While live loads run** back to back\n", _swap_table(swaps)]
    for row in rows_of(rows, "visible"):
        what = (
            f"{row['changes']} changes of {row['ads_changed']:,} ads, {row['precision']}: visible"
        )
        parts.append(f"**Without a load**, {what} after {_visible(row)} s (P50, P99, most)\n")
    if changes := rows_of(rows, "fresh"):
        parts += ["**While ads change** back to back\n", _changes_table(changes)]
    saturated = [row for row in rows_of(rows, "saturation") if row["cpu"]]
    if saturated:
        parts.append("**A core's time at saturation**, by the server's process and thread\n")
    for row in saturated:
        threads = [[name, f"{share:.0%}"] for name, share in row["cpu"].items()]
        parts.append(markdown_table(("thread", f"{row['mode']}, {row['precision']}"), threads))
    return "\n".join(parts)


def _swap_table(rows: Sequence[Row]) -> str:
    def seconds(row: Row) -> str:
        took = row["live_load_s"]
        return f"{median(took):.1f}, {max(took):.1f}" if took else ""

    return table_of(
        rows,
        *_compared_columns("loads"),
        ("loads", lambda x: len(x["live_load_s"])),
        ("seconds of a load: median, most", seconds),
        ("failed loads", lambda x: "; ".join(x["live_load_faults"]) or "0"),
        _BOTH_VALID,
    )


def _changes_table(rows: Sequence[Row]) -> str:
    return table_of(
        rows,
        *_compared_columns("changes"),
        ("changes", "{changes} of {ads_changed:,}"),
        ("visible, s: P50, P99, most", _visible),
        ("faults", lambda x: "; ".join(x["faults"]) or "0"),
        ("replies compared", "{replies_compared:,}"),
        ("host memory, GB: most, then", "{host_gb:.1f}, {host_now_gb:.1f}"),
        ("GPU's", "{gpu_gb:.1f}, {gpu_now_gb:.1f}"),
        _BOTH_VALID,
    )


def _visible(row: Row) -> str:
    return ", ".join(f"{row[f'visible_p{q}_s']:.2f}" for q in (50, 99, 100) if row["changes"])


_BOTH_VALID: Column = ("valid", lambda x: "yes" if x["valid"] and x["alone_valid"] else "no")


def _compared_columns(others: str) -> Sequence[Column]:
    """Return the columns of a load that is made alone, and while the server does other work."""

    def ratio(row: Row) -> str:
        alone, with_others = row["alone_p99_ms"], row["p99_ms"]
        return f"{with_others / alone:.2f}x" if alone and with_others else ""

    return (
        ("mode", "{mode}"),
        ("type", "{precision}"),
        ("offered/s", "{rps:g}"),
        ("alone: P50", "{alone_p50_ms:ms}"),
        ("P99", "{alone_p99_ms:ms}"),
        ("errors", lambda x: x["alone_errors"] + x["alone_withdrawn"]),
        (f"with {others}: P50", "**{p50_ms:ms}**"),
        ("P99", "**{p99_ms:ms}**"),
        ("errors", errors),
        ("P99 with / alone", ratio),
    )


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
