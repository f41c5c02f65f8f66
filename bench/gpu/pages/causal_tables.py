"""The tables of `grace bench causal`, next to what other systems publish."""

from collections.abc import Sequence

from grace.bench.gpu.pages.published import CAUSAL_MS, CAUSAL_PER_SECOND, SHAPES
from grace.bench.markdown import POWER, Column, markdown_table, ms, p99, table_of
from grace.bench.result_file import Row, rows_of

_SOURCES = (
    "*Published* numbers come from the tables of other systems: NVIDIA's sid-gr-inference and "
    "SGLang on an H100, in ms, and FlashRec on an RTX 5090, in requests/s.\n"
)


def causal_tables(rows: Sequence[Row]) -> str:
    shares = {row["precision"]: row["overlap"] for row in rows_of(rows, "agreement")}
    parts = [
        f"A small model finds {share:.1%} of the plain definition's SIDs in {precision}.\n"
        for precision, share in shares.items()
    ]
    if wholes := rows_of(rows, "whole"):
        parts += ["**Whole batches**, ms\n", _wholes_table(wholes), _SOURCES]
    if operations := rows_of(rows, "part"):
        parts.append("**Operations of a layer** by rows, P50 in ms (TFLOP/s)\n")
        parts.append(_operations_table(operations))
    if overlaps := rows_of(rows, "overlap"):
        parts += [
            "**Fidelity**, with random weights\n",
            overlap_table(overlaps, [("kept in bf16", "{kept}")]),
        ]
    return "\n".join(parts)


def overlap_table(
    rows: Sequence[Row], kept: Sequence[Column] = (), more: Sequence[Column] = ()
) -> str:
    return table_of(
        rows,
        ("model", "{variant}"),
        ("type", "{precision}"),
        *kept,
        ("SIDs", "{sids:,}"),
        ("requests", "{requests}"),
        ("generated", "{generated:,.0f}"),
        ("overlap", "**{overlap:.2%}**"),
        ("worst request", "{worst_request:.1%}"),
        ("top 10", "{top_10:.2%}"),
        *more,
    )


def _wholes_table(rows: Sequence[Row]) -> str:
    return table_of(
        rows,
        ("model", "{variant}"),
        ("prompts", "{kind}"),
        ("tokens", "{tokens:,.0f}"),
        ("empty rows", "{padding:.1%}"),
        ("normalizer", "{mode}"),
        ("type", "{precision}"),
        ("batch", "{batch}"),
        ("P50", "**{p50_ms:ms}**"),
        ("P99", p99),
        ("reading", lambda row: ms(row.get("read_p50_ms"))),
        ("searching", lambda row: ms(row.get("search_p50_ms"))),
        ("requests/s", "**{requests_per_s:,.0f}**"),
        (
            "requests/J",
            lambda x: f"{x['requests_per_s'] / x['power_w']:.2f}" if x["power_w"] else "",
        ),
        ("published", _published),
        ("MHz / W", POWER),
    )


def _per_joule(row: Row) -> str:
    return f"{row['requests_per_s'] / row['power_w']:.2f}" if row["power_w"] else ""


def _published(row: Row) -> str:
    if row["kind"] != "longest" and (row["variant"], row["batch"]) in SHAPES:
        return str(SHAPES[row["variant"], row["batch"]])
    if (row["kind"], row["mode"]) != ("longest", "all"):
        return ""
    if row["variant"] == "0.6B":
        return f"FlashRec {CAUSAL_PER_SECOND:g}/s"
    times = CAUSAL_MS.get(row["batch"], {}) if row["variant"] == "1.7B" else {}
    return ", ".join(f"{system} {each:g}" for system, each in times.items())


def _operations_table(rows: Sequence[Row]) -> str:
    """A row per operation, a column per number of rows."""
    counts = sorted({row["rows"] for row in rows})
    cells: dict[tuple[str, ...], dict[int, str]] = {}
    for row in rows:
        line = cells.setdefault((row["variant"], row["kernel"], row["precision"]), {})
        rate = f" ({row['tflops']:.0f})" if row["tflops"] else ""
        line[row["rows"]] = ms(row["p50_ms"]) + rate
    body = [[*name, *(line.get(count, "") for count in counts)] for name, line in cells.items()]
    return markdown_table(("model", "operation", "type", *(f"{x:,}" for x in counts)), body)
