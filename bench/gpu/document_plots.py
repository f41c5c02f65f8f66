"""The pictures of docs/performance.md: rows of result files as bars."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grace.bench.gpu.bars import Bar, draw_bars
from grace.bench.gpu.published import LADDER
from grace.bench.gpu.results import Row

__all__ = ["PLOTS", "Plot"]

_KERNELS_SHOWN = 14


@dataclass(frozen=True, slots=True)
class Plot:
    """Beside the result file, with its name and .svg.

    bars  none where the rows that it shows are not there
    """

    title: str
    series: tuple[str, ...]
    bars: Callable[[Sequence[Row]], list[Bar]]

    def draw(self, rows: Sequence[Row]) -> str | None:
        bars = self.bars(rows)
        return draw_bars(self.title, self.series, bars, "ms") if bars else None


def _ladder(rows: Sequence[Row]) -> list[Bar]:
    bars = []
    for row in rows:
        paper = LADDER.get(row["rung"])
        published = None if paper is None else paper.decoder[0]
        label = f"{row['rung']} {row['precision']}"
        bars.append(Bar(label, (published, row["decoder_p50_ms"])))
    return bars


def _sizes(rows: Sequence[Row]) -> list[Bar]:
    return [
        Bar(f"{row['sids']:,} SIDs", (row["decoder_p50_ms"], row["admission_p50_ms"]))
        for row in rows
        if row["measure"] == "decoder"
    ]


def _serve(rows: Sequence[Row]) -> list[Bar]:
    return [
        Bar(f"{row['measure']} {row['rps']:g}/s {row['precision']}", (row["p50_ms"], row["p99_ms"]))
        for row in rows
    ]


def _budget(rows: Sequence[Row]) -> list[Bar]:
    own = [row for row in rows if row["measure"] not in ("rates", "whole")]
    largest = sorted(own, key=lambda row: -row["measured_ms"])[:_KERNELS_SHOWN]
    return [
        Bar(row["kernel"], (row["floor_ms"] or None, row["measured_ms"] or None)) for row in largest
    ]


PLOTS: Mapping[str, Plot] = {
    "ladder": Plot("Decoder P50, batch 16", ("paper (GH200)", "here"), _ladder),
    "gtm": Plot("P50 by SIDs, D3, batch 16", ("decoder", "admission"), _sizes),
    "serve": Plot("Latency through gRPC", ("P50", "P99"), _serve),
    "budget": Plot("The largest kernels", ("floor", "measured"), _budget),
}
"""By table."""
