"""Draw the pictures of README.md, docs/eligibility.md and docs/tour.md from their result files.

    python -m grace.bench.pictures bench/results/h200

It needs matplotlib, the extra `plots`. `make fix` does not draw: another version of matplotlib
writes other bytes.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from grace.bench.eligibility.tables import CATALOGUES
from grace.bench.gpu.pages.published import LADDER
from grace.bench.result_file import Row, read_result
from grace.configs.extras import install_command

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    sys.exit(f"error: the pictures need {error.name}: {install_command('plots')}")

_MODES = {"cd": "filter afterwards", "union": "the paper's matchers", "exact": "GRACE"}
_PRECISIONS = {"bf16": "GRACE, bf16", "fp8": "GRACE, fp8"}
_COLOURS = ("#c3cad4", "#7fa6d6", "#1f4e8c")
_PAPER_RUNG, _OWN_RUNG = "D3", "D4"

_LINES = {
    "cd": ("filter afterwards", "#98a3b3", "s"),
    "union": ("test unions of rules", "#c9a35b", "^"),
    "static": ("k unions, static", "#8cbf9f", "v"),
    "dynamic": ("k unions, dynamic", "#7fa6d6", "D"),
    "exact": ("test exactly", "#1f4e8c", "o"),
}
"""The name, colour and mark of each way to decode."""


def draw_pictures(results: Path) -> list[Path]:
    """Draw `real.svg`, or else `overview.png` and `passrate.png`, next to the result files."""
    if (results / "real.json").exists():
        _panels(read_result(results / "real.json")["rows"]).savefig(results / "real.svg")
        return [results / "real.svg"]
    study = read_result(results / "passrate.json")["rows"]
    ladder = read_result(results / "ladder.json")["rows"]
    drawn = {"overview.png": _overview(study, ladder), "passrate.png": _pass_rates(study)}
    for name, figure in drawn.items():
        figure.savefig(results / name, dpi=110)
    return [results / name for name in drawn]


def _overview(study: Sequence[Row], ladder: Sequence[Row]) -> Figure:
    """Draw eligible ads and time, next to filtering afterwards and the paper."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    ads, times = figure.subplots(1, 2, width_ratios=(3, 2))
    title = "Eligible ads that a request generates"
    _draw_groups(ads, title, list(_MODES.values()), eligible_ads(study))
    names = ["the paper, GH200", *_PRECISIONS.values()]
    _draw_groups(times, "Time of a batch of 16, ms", names, batch_times(ladder))
    return figure


def _panels(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, row in zip(figure.subplots(2, 2).flat, rows, strict=True):
        _draw_groups(axes, row["title"], row["names"], row["groups"])
    return figure


def eligible_ads(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the mean eligible ads of each mode, by who asks."""
    paper = [row for row in rows if row.get("catalogue") == "paper"]
    everybody = {row["mode"]: row for row in paper if row.get("bucket") == "all"}
    narrow = {
        row["mode"]: row
        for row in paper
        if row.get("audience") == "population" and row["from_pct"] == 0.0
    }
    share = next(iter(narrow.values()))["to_pct"]
    return {
        "all users": [everybody[mode]["eligible_ads"] for mode in _MODES],
        f"users who may see\nless than {share:.0f}% of all ads": [
            narrow[mode]["eligible_ads"] for mode in _MODES
        ],
    }


def batch_times(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the medians of the paper and of each precision, by what is timed."""
    own = {row["precision"]: row for row in rows if row["rung"] == _OWN_RUNG}
    paper = LADDER[_PAPER_RUNG]
    assert paper.decoder is not None
    assert paper.full is not None
    return {
        "decode loop": [paper.decoder[0], *(own[each]["decoder_p50_ms"] for each in _PRECISIONS)],
        "whole path": [paper.full[0], *(own[each]["full_p50_ms"] for each in _PRECISIONS)],
    }


def _draw_groups(
    axes: Axes, title: str, names: Sequence[str], groups: Mapping[str, Sequence[float]]
) -> None:
    """Draw a group of bars for each key, with its values above them."""
    for place, (name, colour) in enumerate(zip(names, _COLOURS, strict=True)):
        at = [group + 0.27 * (place - 1) for group in range(len(groups))]
        values = [group[place] for group in groups.values()]
        bars = axes.bar(at, values, 0.25, color=colour, label=name)
        labels = [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values]
        axes.bar_label(bars, labels)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_yticks([])
    axes.margins(y=0.15)
    axes.set_title(title, fontsize=13)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _pass_rates(rows: Sequence[Row]) -> Figure:
    """Draw eligible ads by selectivity, one line per way to decode."""
    figure = Figure(figsize=(5.5 * len(CATALOGUES), 4.4), layout="constrained")
    figure.suptitle("How many ads that the user may see does one request find?")
    for axes, (side, title) in zip(figure.subplots(1, 2), CATALOGUES.items(), strict=True):
        sweep = [
            row for row in rows if (row.get("catalogue"), row.get("audience")) == (side, "sweep")
        ]
        _draw_lines(axes, sweep)
        axes.set_title(title, fontsize=10)
    return figure


def _draw_lines(axes: Axes, rows: Sequence[Row]) -> None:
    for mode, (name, colour, mark) in _LINES.items():
        own = sorted(
            (row["eligible_pct"], row["eligible_ads"]) for row in rows if row["mode"] == mode
        )
        if own:
            # A thick line stays visible below one that covers it.
            width = 3.5 if mode in ("union", "exact") else 1.5
            axes.plot(*zip(*own, strict=True), color=colour, marker=mark, label=name, lw=width)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="share of all ads that the user may see, %",
        ylabel="eligible ads in 1,024 SIDs",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)


if __name__ == "__main__":
    for path in draw_pictures(Path(sys.argv[1])):
        print(path)
