"""Make the tables of docs/performance.md from the result files: our numbers next to the paper's.

    python -m grace.bench.gpu.pages.document docs/performance.md bench/results

replaces the text between the document's marks: all tables of an H200, and those of an H100.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.gpu.pages import published
from grace.bench.gpu.pages.causal_tables import causal_tables, overlap_table
from grace.bench.gpu.pages.serve_tables import serve_tables
from grace.bench.markdown import POWER, Cell, Column, markdown_table, ms, p99, rewrite, table_of
from grace.bench.result_file import Row, read_result, rows_of

MACHINES = {"performance": ("h200", ""), "performance-h100": ("h100", " on an H100")}
"""The folder of results of each mark, and what its headings add."""

_CROSS_NAMES = {
    "before": "spread to beam rows, SDPA-flash",
    "flash": "beams as queries, SDPA-flash",
    "cudnn": "beams as queries, cuDNN",
}
"""Layout and kernel, where the variant's name says too little."""


def performance_document(results: Path, where: str) -> str:
    """Return the Markdown of all sections that have results."""
    parts = []
    for name, (heading, tables) in SECTIONS.items():
        file = results / f"{name}.json"
        if not file.exists():
            continue
        parts.append(f"## {heading}{where}\n")
        result = read_result(file)
        parts.append(tables(result["rows"]))
        # --commit and --cache only say where it was measured, and change nothing of it.
        command = re.sub(r" --(?:commit|cache)(?:=| +)\S+", "", result["command"])
        commands = command.replace(" && ", "\n")
        shown = f"bench/results/{results.name}/{file.name}"
        source = f"From `{shown}`, commit `{result['commit']}`, {result['machine']}"
        parts.append(f"{source}:\n\n```sh not run: needs a GPU\n{commands}\n```\n")
    return "\n".join(parts)


def _ladder_tables(rows: Sequence[Row]) -> str:
    rungs = [{**row, "paper": published.LADDER[row["rung"]]} for row in rows]

    def ratio(row: Row) -> str:
        paper = row["paper"].decoder
        return "" if paper is None else f"{paper[0] / row['decoder_p50_ms']:.1f}x"

    def goal(row: Row) -> str:
        own = row["paper"].goal
        return "" if own is None else own if isinstance(own, str) else f"{own:g}"

    return "P50/P99 in ms, batch 16.\n\n" + table_of(
        rungs,
        ("rung", "{rung}"),
        ("increment", "{paper.increment}"),
        ("type", "{precision}"),
        ("paper: decoder", lambda x: _quantiles(x["paper"].decoder)),
        ("decoder", "**{decoder_p50_ms:fine}/{decoder_p99_ms:ms}**"),
        ("ratio", ratio),
        ("goal", goal),
        ("paper: full", lambda x: _quantiles(x["paper"].full)),
        ("full", "{full_p50_ms:ms}/{full_p99_ms:ms}"),
        ("paper: MFU", "{paper.mfu:.1%}"),
        ("MFU", "{mfu:.1%}"),
        ("MHz / W", POWER),
        ("SIDs of fp32", "{overlap_with_fp32:.1%}"),
    )


def _quantiles(published: tuple[float, float] | None) -> str:
    return "" if published is None else "/".join(map(ms, published))


def _attention_tables(rows: Sequence[Row]) -> str:
    parts = [
        f"Copy bandwidth, read and written: {row['gb_per_s']:,.0f} GB/s.\n"
        for row in rows_of(rows, "copy")
    ]
    for measure, heading, tables in (
        ("cross", "**Cross-attention**, ms\n", _cross_table),
        ("self", "**Self-attention**, ms\n", _self_table),
    ):
        if own := rows_of(rows, measure):
            parts += [heading, tables(own)]
    return "\n".join(parts)


def _cross_table(rows: Sequence[Row]) -> str:
    before = next((row["p50_ms"] for row in rows if row["variant"] == "before"), None)

    def paper_ms(row: Row) -> str:
        return "/".join(map(ms, published.CROSS_ATTENTION_MS.get(row["variant"], ())))

    return table_of(
        rows,
        ("layout, kernel", lambda x: _CROSS_NAMES.get(x["variant"], x["variant"])),
        ("type", "{precision}"),
        ("paper: FA2/FA3", paper_ms),
        ("P50", "**{p50_ms:ms}**"),
        ("P99", p99),
        ("against spread", lambda x: "" if before is None else f"{before / x['p50_ms']:.1f}x"),
        ("TFLOP/s", "{tflops:.0f}"),
        ("of copy", "{share_of_copy:.0%}"),
    )


def _self_table(rows: Sequence[Row]) -> str:
    def key(row: Row) -> tuple[object, ...]:
        return row["step"], row["beams"], row["precision"]

    def paper_ms(row: Row) -> str:
        paper = published.SELF_ATTENTION_NAMES.get(row["variant"])
        return f"{published.SELF_ATTENTION_MS[paper][row['step']]:g}" if paper else ""

    def paper_rate(row: Row) -> str:
        paper = published.SELF_ATTENTION_NAMES.get(row["variant"])
        return f"{published.SELF_ATTENTION_HBM[paper]:.0f}%" if paper and row["step"] == 3 else ""

    fa2 = {key(row): row["p50_ms"] for row in rows if row["variant"] == "fa2"}
    return table_of(
        sorted(rows, key=lambda row: (row["step"], -row["beams"])),
        ("t", "{step}"),
        ("rows", "{beams:,}"),
        ("variant", "{variant}"),
        ("type", "{precision}"),
        ("past blocks", "{past_blocks:,}"),
        ("MB", "{mb:,.1f}"),
        ("paper", paper_ms),
        ("P50", "**{p50_ms:ms}**"),
        ("P99", p99),
        ("against fa2", lambda x: f"{fa2[key(x)] / x['p50_ms']:.1f}x" if key(x) in fa2 else ""),
        ("TFLOP/s", "{tflops:.2f}"),
        ("of copy", "{share_of_copy:.0%}"),
        ("paper: of peak", paper_rate),
    )


def _gtm_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading in (("admission", "Admission"), ("selection", "Selection")):
        if own := rows_of(rows, measure):
            heading = f"**{heading}**, {own[0]['sids']:,} SIDs, P50 in ms\n"
            parts += [heading, _steps_table(own)]
    if rows_of(rows, "admission"):
        parts.append(
            f"The paper's admission in mode `union` (D3 - D1): {published.ADMISSION_MS:g} ms.\n"
        )
    for measure, schema in (("masks", ""), ("masks_of_all_forms", ", all forms of components")):
        if masks := rows_of(rows, measure):
            what = f"of a batch in mode `exact`, before decoding{schema}, P50 in ms"
            parts += [f"**Eligible nodes** {what}\n", _masks_table(masks)]
    if sizes := rows_of(rows, "decoder"):
        first = sizes[0]["decoder_p50_ms"]
        parts.append("**Decoder against SIDs** (D3), ms\n")
        parts.append(
            table_of(
                sizes,
                ("SIDs", "{sids:,}"),
                ("index, MB", "{index_mb:,}"),
                ("candidates", "{admitted:,}"),
                ("decoder P50", "**{decoder_p50_ms:fine}**"),
                ("P99", "{decoder_p99_ms:fine}"),
                ("growth", lambda x: f"{x['decoder_p50_ms'] / first - 1:+.1%}"),
                ("admission P50", "**{admission_p50_ms:ms}**"),
                ("P99", lambda x: p99(x, "admission_")),
                ("MHz / W", POWER),
            )
        )
    return "\n".join(parts)


def _masks_table(rows: Sequence[Row]) -> str:
    """A row per size and number of set values, a column per step."""
    steps = [step for step in dict.fromkeys(row["step"] for row in rows) if step != "all"]
    sizes: dict[tuple[int, int], dict[str, Row]] = {}
    for row in rows:
        sizes.setdefault((row["sids"], row["values"]), {})[row["step"]] = row
    body = []
    for (sids, values), own in sizes.items():
        times = [ms(own[step]["p50_ms"]) if step in own else "" for step in steps]
        whole = f"**{ms(own['all']['p50_ms'])}**" if "all" in own else ""
        nodes = f"{next(iter(own.values()))['nodes']:,}"
        body.append([f"{sids:,}", nodes, f"{values:,}", whole, *times])
    columns = ("SIDs", "nodes", "set values of a request", "whole", *steps)
    return markdown_table(columns, body)


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


def _overlap_tables(rows: Sequence[Row]) -> str:
    parts = []
    engines = [row for row in rows_of(rows, "overlap") if "recall" in row]
    for row in rows_of(rows, "learning"):
        parts.append(
            f"The trained model: {row['weights']:,} weights, {row['steps']:,} steps of "
            f"{row['batch']:,} over {row['events']:,} events in {row['train_seconds']:g} s; "
            f"loss {row['loss_first']:g} to {row['loss_final']:g} nats per SID of "
            f"{row['sids']:,}. "
            f"The newest event of {row['held_out_users']:,} held-out people is among the first "
            "k generated:\n"
        )
        shares = {
            "plain loop, fp32": row["recall"],
            **{f"engine, {each['precision']}": each["recall"] for each in engines},
            "popularity": row["popularity_recall"],
        }
        body = [[name, *(f"{x:.2%}" for x in own.values())] for name, own in shares.items()]
        parts.append(markdown_table(("", *(f"k = {k}" for k in row["recall"])), body))
    more: Sequence[Column] = (
        ("top 100", "{top_100:.2%}"),
        ("beams by step", lambda x: " / ".join(f"{share:.2%}" for share in x["step_overlap"])),
        ("logits' deviation by step", lambda x: " / ".join(f"{y:g}" for y in x["logit_std"])),
    )
    return "\n".join([*parts, overlap_table(rows_of(rows, "overlap"), more=more)])


def _budget_tables(rows: Sequence[Row]) -> str:
    parts = [
        f"*At sustained rates*: {row['copy_gb_per_s']:,.0f} GB/s of a copy and "
        f"{row['product_tflops']:.0f} TFLOP/s of a large product ({row['precision']}).\n"
        for row in rows_of(rows, "rates")
    ]
    kernels = rows_of(rows, "product", "operation", "other")
    parts += [
        _kernels_table([row for row in kernels if row["precision"] == precision])
        for precision in dict.fromkeys(row["precision"] for row in kernels)
    ]
    whole = [row for row in rows_of(rows, "whole") if row["joules"] is not None]
    if whole:
        parts.append("**Energy of a batch**, all of its steps as one graph\n")
        parts.append(
            table_of(
                whole,
                ("type", "{precision}"),
                ("P50/P99, ms", "{p50_ms:ms}/{p99_ms:ms}"),
                ("MHz / W", POWER),
                (
                    "large product: MHz / W",
                    "{large_product_sm_clock_mhz} / {large_product_power_w}",
                ),
                ("J", "**{joules:.2f}**"),
                ("products, J", "{product_joules:.2f}"),
                ("all else, J", lambda x: f"{x['joules'] - x['product_joules']:.2f}"),
            )
        )
    return "\n".join(parts)


def _kernels_table(rows: Sequence[Row]) -> str:
    """Return all kernels of one precision, the longest first, and their sum."""
    own = sorted(rows, key=lambda row: -row["measured_ms"])
    total: Row = {"kernel": "all", "precision": "", "calls": 0, "gflop": 0, "mb": 0}
    total |= {name: sum(row[name] for row in own) for name in ("floor_ms", "measured_ms")}

    def known(name: str, form: str) -> Cell:
        return lambda row: format(row[name], form) if row[name] else ""

    return table_of(
        [*own, total],
        ("kernel", "{kernel}"),
        ("type", "{precision}"),
        ("calls", known("calls", "")),
        ("GFLOP", known("gflop", ",.1f")),
        ("MB", known("mb", ",.1f")),
        ("at sustained rates, ms", known("floor_ms", ".3f")),
        ("measured, ms", "{measured_ms:.3f}"),
        ("share", lambda x: f"{x['share']:.1%}" if "share" in x else ""),
    )


def _peers_tables(rows: Sequence[Row]) -> str:
    parts = []
    for measure, heading, column in (
        ("generate", "A batch of 16, generated, by beams", "beams {beams}"),
        ("step", "One step, by the catalogue alone", "step {step}: {beams} to {kept}"),
    ):
        if own := [row for row in rows_of(rows, measure) if "seconds" in row]:
            seconds = " or ".join(dict.fromkeys(f"{row['seconds']:g}" for row in own))
            times: dict[str, dict[str, str]] = {}
            for row in own:
                version = row.get("version")
                name = f"{row['variant']} ({version})" if version else row["variant"]
                times.setdefault(name, {})[column.format(**row)] = _time_and_memory(row)
            columns = list(dict.fromkeys(column.format(**row) for row in own))
            body = [[name, *(line.get(x, "") for x in columns)] for name, line in times.items()]
            parts.append(f"**{heading}**, P50 in ms over {seconds} s each\n")
            parts.append(markdown_table(("", *columns), body))
    parts += [
        f"{row['variant']} was not measured: {row['unavailable']}.\n"
        for row in rows_of(rows, "step")
        if "unavailable" in row
    ]
    if rows_of(rows, "whole", "agreement"):
        parts.append(causal_tables(rows))
    return "\n".join(parts)


def _time_and_memory(row: Row) -> str:
    if "unavailable" in row:
        return str(row["unavailable"])
    memory = f" ({row['peak_gb']:g} GB)" if "peak_gb" in row else ""
    return f"{ms(row['p50_ms'])}{memory}"


SECTIONS: Mapping[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "ladder": ("Decoder and whole path", _ladder_tables),
    "attention": ("Attention kernels", _attention_tables),
    "gtm": ("Admission and selection", _gtm_tables),
    "serve": ("The service", serve_tables),
    "fresh": ("Changes of ads while the service runs", serve_tables),
    "overlap": ("Fidelity of lower precision", _overlap_tables),
    "budget": ("Budget of the decode loop", _budget_tables),
    "peers": ("Side by side", _peers_tables),
    "causal": ("Causal models", causal_tables),
}
"""By table, the heading of its section and its Markdown."""


if __name__ == "__main__":
    for mark, (folder, where) in MACHINES.items():
        rewrite(Path(sys.argv[1]), mark, performance_document(Path(sys.argv[2]) / folder, where))
