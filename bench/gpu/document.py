"""Make the tables of docs/performance.md from the result files: our numbers beside the paper's.

    python -m grace.bench.gpu.document docs/performance.md bench/results/h200

replaces what is between the document's marks. A table without a result file is replaced by the
command that makes the file; a number without a file does not exist.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.gpu.cells import Cell, fine, ms, p99, pair, power, ratio, table_of
from grace.bench.gpu.published import (
    ADMISSION_MS,
    CROSS_ATTENTION_MS,
    LADDER,
    SELF_ATTENTION_COUNTERS,
    SELF_ATTENTION_MS,
    PublishedRung,
)
from grace.bench.gpu.results import Row
from grace.bench.result_tables import markdown_table
from grace.configs.marked_text import rewrite

NAME = "performance"

_PAPERS_NAMES = {
    "fa2": "fa2", "coalesced": "coalesced", "fused": "fused", "ours": "paged",
    "ours distinct": "paged",
}  # fmt: skip
"""The paper's names of self-attention kernels."""

_CROSS_NAMES = {
    "before": "spread to beam rows, SDPA-flash",
    "flash": "beams as queries, SDPA-flash",
    "cudnn": "beams as queries, cuDNN",
}
"""Layout and kernel, where the variant's name says too little."""


def performance_document(results: Path) -> str:
    """Return the Markdown of all sections."""
    parts = []
    for name, (heading, tables) in _SECTIONS.items():
        parts.append(f"## {heading}\n")
        file = results / f"{name}.json"
        if not file.exists():
            parts.append(
                f"Not measured yet: `grace bench {name} --out {_shown(file)}` on a machine with "
                "the GPU writes the result file that this section is made of.\n"
            )
            continue
        result: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        parts.append(tables(result["rows"]))
        for picture, title in ((name, heading), (f"{name}_timeline", "the stages at saturation")):
            drawn = results / f"{picture}.png"
            if drawn.exists():
                parts.append(f"![{title}](../{_shown(drawn)})\n")
        # --commit and --cache only say where it was measured, and change nothing of it.
        command = re.sub(r" --(?:commit|cache)(?:=| +)\S+", "", result["command"])
        commands = command.replace(" && ", "\n")
        source = f"From `{_shown(file)}`, commit `{result['commit']}`, {result['machine']}"
        parts.append(f"{source}:\n\n```sh\n{commands}\n```\n")
    return "\n".join(parts)


def _shown(file: Path) -> str:
    """The path below the repository's root."""
    parts = file.parts
    return "/".join(parts[parts.index("bench") :]) if "bench" in parts else file.name


def _of(rows: Sequence[Row], *measures: str) -> list[Row]:
    return [row for row in rows if row["measure"] in measures]


def _ladder_tables(rows: Sequence[Row]) -> str:
    def paper(show: Callable[[PublishedRung], str]) -> Callable[[Row], str]:
        return lambda row: show(LADDER[row["rung"]]) if row["rung"] in LADDER else ""

    return "P50/P99 in ms, batch 16.\n\n" + table_of(
        rows,
        ("rung", "rung"),
        ("increment", paper(lambda rung: rung.increment)),
        ("type", "precision"),
        ("paper: decoder", paper(lambda rung: pair(*rung.decoder))),
        ("decoder", lambda x: f"**{fine(x['decoder_p50_ms'])}/{ms(x['decoder_p99_ms'])}**"),
        ("ratio", lambda x: paper(lambda rung: ratio(rung.decoder[0], x["decoder_p50_ms"]))(x)),
        ("goal", paper(lambda rung: f"{rung.goal_decoder:g}" if rung.goal_decoder else "")),
        ("paper: full", paper(lambda rung: pair(*rung.full))),
        ("full", lambda x: pair(x["full_p50_ms"], x["full_p99_ms"])),
        ("paper: MFU", paper(lambda rung: f"{rung.mfu:.1%}" if rung.mfu else "")),
        ("MFU", lambda x: f"{x['mfu']:.1%}"),
        ("MHz / W", power),
        ("SIDs of fp32", lambda x: f"{x['overlap_with_fp32']:.1%}"),
    )


def _attention_tables(rows: Sequence[Row]) -> str:
    parts = [
        f"Copy bandwidth, read and written: {row['gb_per_s']:,.0f} GB/s.\n"
        for row in _of(rows, "copy")
    ]
    for measure, heading, tables in (
        ("cross", "**Cross-attention**, ms\n", _cross_table),
        ("self", "**Self-attention**, ms\n", _self_table),
        ("counters", "**Nsight Compute**, t = 3\n", _counters_table),
    ):
        if own := _of(rows, measure):
            parts += [heading, tables(own)]
    return "\n".join(parts)


def _cross_table(rows: Sequence[Row]) -> str:
    before = next((row["p50_ms"] for row in rows if row["variant"] == "before"), None)
    published = {
        "before": pair(*CROSS_ATTENTION_MS["before"]),
        "flash": pair(*CROSS_ATTENTION_MS["after"]),
    }
    return table_of(
        rows,
        ("layout, kernel", lambda x: _CROSS_NAMES.get(x["variant"], x["variant"])),
        ("type", "precision"),
        ("paper: FA2/FA3", lambda x: published.get(x["variant"], "")),
        ("P50", lambda x: f"**{ms(x['p50_ms'])}**"),
        ("P99", p99),
        ("against spread", lambda x: "" if before is None else ratio(before, x["p50_ms"])),
        ("TFLOP/s", lambda x: f"{x['tflops']:.0f}"),
        ("of copy", lambda x: f"{x['share_of_copy']:.0%}"),
    )


def _self_table(rows: Sequence[Row]) -> str:
    def key(row: Row) -> tuple[object, ...]:
        return row["step"], row["beams"], row["precision"]

    fa2 = {key(row): row["p50_ms"] for row in rows if row["variant"] == "fa2"}

    def published(row: Row) -> str:
        paper = SELF_ATTENTION_MS.get(_PAPERS_NAMES.get(row["variant"], ""))
        return "" if paper is None else f"{paper[row['step']]:g}"

    return table_of(
        sorted(rows, key=lambda row: (row["step"], -row["beams"])),
        ("t", "step"),
        ("rows", lambda x: f"{x['beams']:,}"),
        ("variant", "variant"),
        ("type", "precision"),
        ("past blocks", lambda x: f"{x['past_blocks']:,}"),
        ("MB", lambda x: f"{x['mb']:,.1f}"),
        ("paper", published),
        ("P50", lambda x: f"**{ms(x['p50_ms'])}**"),
        ("P99", p99),
        ("against fa2", lambda x: ratio(fa2[key(x)], x["p50_ms"]) if key(x) in fa2 else ""),
        ("TFLOP/s", lambda x: f"{x['tflops']:.2f}"),
        ("of copy", lambda x: f"{x['share_of_copy']:.0%}"),
    )


def _counters_table(rows: Sequence[Row]) -> str:
    """Ours beside the paper's; one sentence if nothing could be counted, for the same reason."""
    reasons = {row.get("unavailable") for row in rows}
    if len(reasons) == 1 and None not in reasons:
        return f"Unavailable where this was measured: {reasons.pop()}.\n"

    def paper(place: int, unit: str = "") -> Callable[[Row], str]:
        def show(row: Row) -> str:
            name = "" if row["kernel"] == "cross" else _PAPERS_NAMES.get(row["variant"], "")
            if "unavailable" in row or name not in SELF_ATTENTION_COUNTERS:
                return ""
            return name if place < 0 else f"{SELF_ATTENTION_COUNTERS[name][place]}{unit}"

        return show

    def ours(show: Callable[[Row], str]) -> Cell:
        return lambda row: "" if "unavailable" in row else f"**{show(row)}**"

    def first(row: Row) -> object:
        return f"unavailable: {row['unavailable']}" if "unavailable" in row else paper(-1)(row)

    return table_of(
        rows,
        ("kernel", lambda x: f"{x['kernel']}: {x['variant']}"),
        ("the paper's", first),
        ("instructions", ours(lambda x: f"{x['instructions'] / 1e6:,.1f} M")),
        ("paper", paper(2)),
        ("occupancy", ours(lambda x: f"{x['occupancy_percent']:.1f} %")),
        ("paper", paper(3, " %")),
        ("HBM, of peak", ours(lambda x: f"{x['hbm_percent']:.1f} %")),
        ("paper", paper(1, " %")),
    )


def _gtm_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading in (("admission", "Admission"), ("selection", "Selection")):
        if own := _of(rows, measure):
            heading = f"**{heading}**, {own[0]['sids']:,} SIDs, P50 in ms\n"
            parts += [heading, _steps_table(own)]
    if _of(rows, "admission"):
        parts.append(f"The paper's admission in mode `union` (D3 - D1): {ADMISSION_MS:g} ms.\n")
    if sizes := _of(rows, "decoder"):
        first = sizes[0]["decoder_p50_ms"]
        parts.append("**Decoder against SIDs** (D3), ms\n")
        parts.append(
            table_of(
                sizes,
                ("SIDs", lambda x: f"{x['sids']:,}"),
                ("index, MB", lambda x: f"{x['index_mb']:,}"),
                ("candidates", lambda x: f"{x['admitted']:,}"),
                ("decoder P50", lambda x: f"**{fine(x['decoder_p50_ms'])}**"),
                ("P99", lambda x: fine(x["decoder_p99_ms"])),
                ("growth", lambda x: f"{x['decoder_p50_ms'] / first - 1:+.1%}"),
                ("admission P50", lambda x: f"**{ms(x['admission_p50_ms'])}**"),
                ("P99", lambda x: p99(x, "admission_")),
                ("MHz / W", power),
            )
        )
    return "\n".join(parts)


def _steps_table(rows: Sequence[Row]) -> str:
    """A row per mode, a column per step."""
    steps = sorted({row["step"] for row in rows if row["step"] != "all"})
    modes: dict[str, dict[Any, Row]] = {}
    for row in rows:
        modes.setdefault(row["mode"], {})[row["step"]] = row
    body = []
    for mode, own in modes.items():
        times = [ms(own[step]["p50_ms"]) if step in own else "" for step in steps]
        whole = f"**{ms(own['all']['p50_ms'])}**" if "all" in own else ""
        admitted = [f"{own[step]['admitted']:,}" for step in steps if step in own]
        body.append([mode, *times, whole, " / ".join(admitted)])
    columns = ("mode", *(f"step {step}" for step in steps), "all steps", "candidates by step")
    return markdown_table(columns, body)


def _serve_tables(rows: Sequence[Row]) -> str:
    def stage(name: str) -> tuple[str, Cell]:
        return name, lambda row: ms(row["stages_p50_ms"][name])

    served = table_of(
        rows,
        ("load", "measure"),
        ("type", "precision"),
        ("offered/s", lambda x: "" if x["measure"] == "saturation" else f"{x['rps']:g}"),
        ("answered/s", lambda x: f"{x.get('answered_rps', x['rps']):g}"),
        ("P50", lambda x: f"**{ms(x['p50_ms'])}**"),
        ("P99", lambda x: f"**{ms(x['p99_ms'])}**"),
        ("errors", "errors"),
        *map(stage, ("queue", "input", "features", "generate", "post", "overhead")),
        ("late P99", lambda x: ms(x["client_late_p99_ms"])),
        ("valid", lambda x: "yes" if x["valid"] else "no"),
        ("generate busy", lambda x: f"{x['generate_busy']:.1%}" if "generate_busy" in x else ""),
    )
    parts = ["Times in ms; the stages' are P50.\n", served]
    for row in _of(rows, "saturation"):
        if row["cpu"]:
            threads = [[name, f"{share:.0%}"] for name, share in row["cpu"].items()]
            parts.append("**A core's time at saturation**, by the server's process and thread\n")
            parts.append(markdown_table(("thread", row["precision"]), threads))
    return "\n".join(parts)


def _overlap_tables(rows: Sequence[Row]) -> str:
    parts = []
    names = {"model": "recall", "popularity": "popularity_recall", "random": "random_recall"}
    for row in _of(rows, "learning"):
        parts.append(
            f"The trained model: {row['weights']:,} weights, {row['steps']:,} steps of "
            f"{row['batch']:,} over {row['events']:,} events in {row['train_seconds']:g} s; "
            f"loss {row['loss_first']:g} to {row['loss_final']:g} nats per SID of "
            f"{row['sids']:,}. "
            f"The newest event of {row['held_out_users']:,} held-out people is among the first "
            "k generated:\n"
        )
        body = [[name, *(f"{x:.2%}" for x in row[key].values())] for name, key in names.items()]
        parts.append(markdown_table(("", *(f"k = {k}" for k in row["recall"])), body))
    overlaps = table_of(
        _of(rows, "overlap"),
        ("model", "variant"),
        ("type", "precision"),
        ("SIDs", lambda x: f"{x['sids']:,}"),
        ("requests", "requests"),
        ("generated", lambda x: f"{x['generated']:,.0f}"),
        ("overlap", lambda x: f"**{x['overlap']:.2%}**"),
        ("worst request", lambda x: f"{x['worst_request']:.1%}"),
        ("top 10", lambda x: f"{x['top_10']:.2%}"),
        ("top 100", lambda x: f"{x['top_100']:.2%}"),
        ("beams by step", lambda x: " / ".join(f"{share:.2%}" for share in x["step_overlap"])),
        ("logits' deviation by step", lambda x: " / ".join(f"{y:g}" for y in x["logit_std"])),
    )
    return "\n".join([*parts, overlaps])


def _budget_tables(rows: Sequence[Row]) -> str:
    parts = [
        f"*At sustained rates*: {row['copy_gb_per_s']:,.0f} GB/s of a copy and "
        f"{row['product_tflops']:.0f} TFLOP/s of a large product ({row['precision']}).\n"
        for row in _of(rows, "rates")
    ]
    own = sorted(_of(rows, "product", "operation", "other"), key=lambda row: -row["measured_ms"])
    total: Row = {"kernel": "all", "precision": "", "calls": 0, "gflop": 0, "mb": 0}
    total |= {name: sum(row[name] for row in own) for name in ("floor_ms", "measured_ms")}

    def known(name: str, form: str) -> Cell:
        return lambda row: format(row[name], form) if row[name] else ""

    parts.append(
        table_of(
            [*own, total],
            ("kernel", "kernel"),
            ("type", "precision"),
            ("calls", known("calls", "")),
            ("GFLOP", known("gflop", ",.1f")),
            ("MB", known("mb", ",.1f")),
            ("at sustained rates, ms", known("floor_ms", ".3f")),
            ("measured, ms", lambda x: f"{x['measured_ms']:.3f}"),
            ("share", lambda x: f"{x['share']:.1%}" if "share" in x else ""),
        )
    )
    whole = [row for row in _of(rows, "whole") if row["joules"] is not None]
    if whole:
        parts.append("**Energy of a batch**, all of its steps as one graph\n")
        parts.append(
            table_of(
                whole,
                ("type", "precision"),
                ("P50/P99, ms", lambda x: pair(x["p50_ms"], x["p99_ms"])),
                ("MHz / W", power),
                ("large product: MHz / W", lambda x: power(x, "large_product_")),
                ("J", lambda x: f"**{x['joules']:.2f}**"),
                ("products, J", lambda x: f"{x['product_joules']:.2f}"),
                ("all else, J", lambda x: f"{x['joules'] - x['product_joules']:.2f}"),
            )
        )
    return "\n".join(parts)


def _comparison_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading, column in (
        ("generate", "A batch of 16, generated, by beams", "beams"),
        ("step", "One step: from logits to its beams, by the catalogue alone", "step"),
    ):
        if own := _of(rows, measure):
            seconds = " or ".join(dict.fromkeys(f"{row['seconds']:g}" for row in own))
            columns = list(dict.fromkeys(row[column] for row in own))
            names = list(dict.fromkeys(row["variant"] for row in own))
            times = {(row["variant"], row[column]): _time_and_memory(row) for row in own}
            body = [[name, *(times.get((name, each), "") for each in columns)] for name in names]
            parts.append(f"**{heading}**, P50 in ms over {seconds} s each\n")
            parts.append(markdown_table(("", *(f"{column} {each}" for each in columns)), body))
    return "\n".join(parts)


def _time_and_memory(row: Row) -> str:
    if "unavailable" in row:
        return str(row["unavailable"])
    memory = f" ({row['peak_gb']:g} GB)" if "peak_gb" in row else ""
    return f"{ms(row['p50_ms'])}{memory}"


_SECTIONS: Mapping[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "ladder": ("Decoder and whole path", _ladder_tables),
    "attention": ("Attention kernels", _attention_tables),
    "gtm": ("Admission and selection", _gtm_tables),
    "serve": ("The service", _serve_tables),
    "overlap": ("Fidelity of half precision", _overlap_tables),
    "budget": ("Budget of the decode loop", _budget_tables),
    "others": ("Side by side", _comparison_tables),
}
"""By table, the heading of its section and its Markdown."""


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]), NAME, performance_document(Path(sys.argv[2])))
