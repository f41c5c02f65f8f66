"""The tables of docs/performance.md: rows of result files as Markdown."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grace.bench.gpu.published import (
    ADMISSION_MS,
    CROSS_ATTENTION_MS,
    LADDER,
    SELF_ATTENTION_COUNTERS,
    SELF_ATTENTION_MS,
)
from grace.bench.gpu.results import Row

__all__ = [
    "attention_tables",
    "budget_tables",
    "gtm_tables",
    "ladder_tables",
    "markdown_table",
    "others_tables",
    "serve_tables",
]

_PAPERS_NAMES = {
    "fa2": "fa2", "coalesced": "coalesced", "fused": "fused", "ours": "paged",
    "ours distinct": "paged",
}  # fmt: skip
"""Of the self-attention kernels."""

_CROSS_NAMES = {
    "before": "spread to beam rows, SDPA-flash",
    "flash": "beams as queries, SDPA-flash",
    "cudnn": "beams as queries, cuDNN",
}
"""Of layout and kernel, where the variant's own says too little."""


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def ladder_tables(rows: Sequence[Row]) -> str:
    body = []
    for row in rows:
        paper = LADDER.get(row["rung"])
        body.append(
            [
                row["rung"],
                "" if paper is None else paper.increment,
                row["precision"],
                "" if paper is None else _pair(*paper.decoder),
                f"**{_fine(row['decoder_p50_ms'])}/{_ms(row['decoder_p99_ms'])}**",
                "" if paper is None else _times(paper.decoder[0], row["decoder_p50_ms"]),
                "" if paper is None or paper.goal_decoder is None else f"{paper.goal_decoder:g}",
                "" if paper is None else _pair(*paper.full),
                _pair(row["full_p50_ms"], row["full_p99_ms"]),
                "" if paper is None or paper.mfu is None else f"{paper.mfu:.1%}",
                f"{row['mfu']:.1%}",
                f"{row['sm_clock_mhz']} / {row['power_w']}",
                f"{row['overlap_with_fp32']:.1%}",
            ]
        )
    headings = (
        "rung", "increment", "type", "paper: decoder", "decoder", "ratio", "goal", "paper: full",
        "full", "paper: MFU", "MFU", "MHz / W", "SIDs of fp32",
    )  # fmt: skip
    return "P50/P99 in ms, batch 16.\n\n" + markdown_table(headings, body)


def attention_tables(rows: Sequence[Row]) -> str:
    copy = next((row["gb_per_s"] for row in rows if row["measure"] == "copy"), None)
    parts = [] if copy is None else [f"Copy bandwidth, read and written: {copy:,.0f} GB/s.\n"]
    cross = [row for row in rows if row["measure"] == "cross"]
    if cross:
        parts += ["**Cross-attention**, ms\n", _cross_table(cross)]
    self_rows = [row for row in rows if row["measure"] == "self"]
    if self_rows:
        parts += ["**Self-attention**, ms\n", _self_table(self_rows)]
    counters = [row for row in rows if row["measure"] == "counters"]
    if counters:
        parts += ["**Nsight Compute**, t = 3\n", _counters_table(counters)]
    return "\n".join(parts)


def _cross_table(rows: Sequence[Row]) -> str:
    before = next((row["p50_ms"] for row in rows if row["variant"] == "before"), None)
    body = []
    for row in rows:
        published = CROSS_ATTENTION_MS["before" if row["variant"] == "before" else "after"]
        body.append(
            [
                _CROSS_NAMES.get(row["variant"], row["variant"]),
                row["precision"],
                _pair(*published) if row["variant"] in ("before", "flash") else "",
                f"**{_ms(row['p50_ms'])}**",
                _p99(row),
                "" if before is None else _times(before, row["p50_ms"]),
                f"{row['tflops']:.0f}",
                f"{row['share_of_copy']:.0%}",
            ]
        )
    headings = (
        "layout, kernel", "type", "paper: FA2/FA3", "P50", "P99", "against spread", "TFLOP/s",
        "of copy",
    )  # fmt: skip
    return markdown_table(headings, body)


def _self_table(rows: Sequence[Row]) -> str:
    body = []
    for row in sorted(rows, key=lambda row: (row["step"], -row["beams"])):
        fa2 = _value(rows, "fa2", row["step"], row["beams"], row["precision"])
        published = SELF_ATTENTION_MS.get(_PAPERS_NAMES.get(row["variant"], ""))
        body.append(
            [
                row["step"],
                f"{row['beams']:,}",
                row["variant"],
                row["precision"],
                f"{row['past_blocks']:,}",
                f"{row['mb']:,.1f}",
                "" if published is None else f"{published[row['step']]:g}",
                f"**{_ms(row['p50_ms'])}**",
                _p99(row),
                "" if not fa2 else _times(fa2, row["p50_ms"]),
                f"{row['tflops']:.2f}",
                f"{row['share_of_copy']:.0%}",
            ]
        )
    headings = (
        "t", "rows", "variant", "type", "past blocks", "MB", "paper", "P50", "P99", "against fa2",
        "TFLOP/s", "of copy",
    )  # fmt: skip
    return markdown_table(headings, body)


def _value(
    rows: Sequence[Row], variant: str, step: int, beams: int, precision: str
) -> float | None:
    for row in rows:
        if (row["variant"], row["step"], row["beams"]) == (variant, step, beams) and (
            row["precision"] == precision
        ):
            found: float = row["p50_ms"]
            return found
    return None


def _counters_table(rows: Sequence[Row]) -> str:
    """Ours beside the paper's; why there are none is said once, where it holds for all."""
    reasons = {row.get("unavailable") for row in rows}
    if len(reasons) == 1 and None not in reasons:
        return f"Unavailable where this was measured: {reasons.pop()}.\n"
    body = []
    for row in rows:
        name = f"{row['kernel']}: {row['variant']}"
        if "unavailable" in row:
            body.append([name, f"unavailable: {row['unavailable']}", *[""] * 6])
            continue
        paper = None if row["kernel"] == "cross" else _PAPERS_NAMES.get(row["variant"])
        _, hbm, instructions, occupancy = SELF_ATTENTION_COUNTERS.get(paper or "", (None,) * 4)
        body.append(
            [
                name,
                paper or "",
                f"**{row['instructions'] / 1e6:,.1f} M**",
                instructions or "",
                f"**{row['occupancy_percent']:.1f} %**",
                "" if occupancy is None else f"{occupancy:g} %",
                f"**{row['hbm_percent']:.1f} %**",
                "" if hbm is None else f"{hbm:g} %",
            ]
        )
    headings = (
        "kernel", "the paper's", "instructions", "paper", "occupancy", "paper", "HBM, of peak",
        "paper",
    )  # fmt: skip
    return markdown_table(headings, body)


def gtm_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading in (("admission", "Admission"), ("selection", "Selection")):
        own = [row for row in rows if row["measure"] == measure]
        if own:
            heading = f"**{heading}**, {own[0]['sids']:,} SIDs, P50 in ms\n"
            parts += [heading, _steps_table(own)]
    if any(row["measure"] == "admission" for row in rows):
        parts.append(f"The paper's admission in mode `union` (D3 - D1): {ADMISSION_MS:g} ms.\n")
    sizes = [row for row in rows if row["measure"] == "decoder"]
    if sizes:
        first = sizes[0]["decoder_p50_ms"]
        body = [
            [
                f"{row['sids']:,}",
                f"{row['index_mb']:,}",
                f"{row['admitted']:,}",
                f"**{_fine(row['decoder_p50_ms'])}**",
                _fine(row["decoder_p99_ms"]),
                f"{row['decoder_p50_ms'] / first - 1:+.1%}",
                f"**{_ms(row['admission_p50_ms'])}**",
                _p99(row, "admission_"),
                f"{row['sm_clock_mhz']} / {row['power_w']}",
            ]
            for row in sizes
        ]
        headings = (
            "SIDs", "index, MB", "candidates", "decoder P50", "P99", "growth", "admission P50",
            "P99", "MHz / W",
        )  # fmt: skip
        parts += ["**Decoder against SIDs** (D3), ms\n", markdown_table(headings, body)]
    return "\n".join(parts)


def _steps_table(rows: Sequence[Row]) -> str:
    """A row per mode, a column per step."""
    steps = sorted({row["step"] for row in rows if row["step"] != "all"})
    body = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = {row["step"]: row for row in rows if row["mode"] == mode}
        admitted = [f"{own[step]['admitted']:,}" for step in steps if step in own]
        times = (_ms(own[step]["p50_ms"]) if step in own else "" for step in steps)
        whole = f"**{_ms(own['all']['p50_ms'])}**" if "all" in own else ""
        body.append([mode, *times, whole, " / ".join(admitted)])
    columns = ("mode", *(f"step {step}" for step in steps), "all steps", "candidates by step")
    return markdown_table(columns, body)


def serve_tables(rows: Sequence[Row]) -> str:
    stages = ("queue", "input", "features", "generate", "post", "overhead")
    body = [
        [
            row["measure"],
            row["precision"],
            f"{row['rps']:g}" if row["measure"] != "saturation" else "",
            f"{row.get('answered_rps', row['rps']):g}",
            f"**{_ms(row['p50_ms'])}**",
            f"**{_ms(row['p99_ms'])}**",
            row["errors"],
            *(_ms(row["stages_p50_ms"][stage]) for stage in stages),
            _ms(row["client_late_p99_ms"]),
            "yes" if row["valid"] else "no",
            f"{row['generate_busy']:.1%}" if "generate_busy" in row else "",
        ]
        for row in rows
    ]
    headings = (
        "load", "type", "offered/s", "answered/s", "P50", "P99", "errors", *stages, "late P99",
        "valid", "generate busy",
    )  # fmt: skip
    parts = ["Times in ms; the stages' are P50.\n", markdown_table(headings, body)]
    for row in rows:
        if row["measure"] == "saturation" and row["cpu"]:
            threads = [[name, f"{share:.0%}"] for name, share in row["cpu"].items()]
            parts.append("**A core's time at saturation**, by the server's process and thread\n")
            parts.append(markdown_table(("thread", row["precision"]), threads))
    return "\n".join(parts)


def budget_tables(rows: Sequence[Row]) -> str:
    parts = [
        f"*At sustained rates*: {row['copy_gb_per_s']:,.0f} GB/s of a copy and "
        f"{row['product_tflops']:.0f} TFLOP/s of a large product ({row['precision']}).\n"
        for row in rows
        if row["measure"] == "rates"
    ]
    own = [row for row in rows if row["measure"] not in ("rates", "whole")]
    body = [
        [
            row["kernel"],
            row["precision"],
            row["calls"] or "",
            f"{row['gflop']:,.1f}" if row["gflop"] else "",
            f"{row['mb']:,.1f}" if row["mb"] else "",
            f"{row['floor_ms']:.3f}" if row["floor_ms"] else "",
            f"{row['measured_ms']:.3f}",
            f"{row['share']:.1%}",
        ]
        for row in sorted(own, key=lambda row: -row["measured_ms"])
    ]
    total, floor = (sum(row[name] for row in own) for name in ("measured_ms", "floor_ms"))
    body.append(["all", "", "", "", "", f"{floor:.3f}", f"{total:.3f}", ""])
    headings = (
        "kernel",
        "type",
        "calls",
        "GFLOP",
        "MB",
        "at sustained rates, ms",
        "measured, ms",
        "share",
    )
    parts.append(markdown_table(headings, body))
    whole = [row for row in rows if row["measure"] == "whole" and row["joules"] is not None]
    if whole:
        parts += ["**Energy of a batch**, all of its steps as one graph\n", _energy_table(whole)]
    return "\n".join(parts)


def _energy_table(rows: Sequence[Row]) -> str:
    body = [
        [
            row["precision"],
            _pair(row["p50_ms"], row["p99_ms"]),
            f"{row['sm_clock_mhz']} / {row['power_w']}",
            f"{row['large_product_sm_clock_mhz']} / {row['large_product_power_w']}",
            f"**{row['joules']:.2f}**",
            f"{row['product_joules']:.2f}",
            f"{row['joules'] - row['product_joules']:.2f}",
        ]
        for row in rows
    ]
    headings = (
        "type", "P50/P99, ms", "MHz / W", "large product: MHz / W", "J", "products, J",
        "all else, J",
    )  # fmt: skip
    return markdown_table(headings, body)


def others_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading, column in (
        ("generate", "A batch of 16, generated, by beams", "beams"),
        ("step", "One step: from logits to its beams, by the catalogue alone", "step"),
    ):
        own = [row for row in rows if row["measure"] == measure]
        if own:
            seconds = " or ".join(dict.fromkeys(f"{row['seconds']:g}" for row in own))
            heading = f"**{heading}**, P50 in ms over {seconds} s each\n"
            parts += [heading, _matrix(own, column, _cell)]
    return "\n".join(parts)


def _matrix(rows: Sequence[Row], column: str, cell: Callable[[Row], str]) -> str:
    columns = list(dict.fromkeys(row[column] for row in rows))
    names = list(dict.fromkeys(row["variant"] for row in rows))
    cells = {(row["variant"], row[column]): cell(row) for row in rows}
    body = [[name, *(cells.get((name, each), "") for each in columns)] for name in names]
    return markdown_table(("", *(f"{column} {each}" for each in columns)), body)


def _cell(row: Row) -> str:
    if "unavailable" in row:
        return str(row["unavailable"])
    memory = f" ({row['peak_gb']:g} GB)" if "peak_gb" in row else ""
    return f"{_ms(row['p50_ms'])}{memory}"


def _p99(row: Row, of: str = "") -> str:
    """Of single calls, or, and then it says so, of the means of several."""
    means = row.get(f"{of}p99_of_means_ms")
    if means is not None:
        return f"{_ms(means)} ({row[f'{of}calls']})"
    return _ms(row.get(f"{of}p99_ms"))


def _pair(p50: Any, p99: Any) -> str:
    return f"{_ms(p50)}/{_ms(p99)}"


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def _fine(value: float) -> str:
    """For what is compared to a hundredth."""
    return f"{value:.2f}" if value < 100 else _ms(value)


def _times(paper: float, ours: float) -> str:
    return f"{paper / ours:.1f}x"
