"""The README's picture: eligible ads and time, next to filtering afterwards and the paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from grace.bench.figures import Axes, Figure
from grace.bench.gpu.pages.published import LADDER
from grace.bench.result_file import Row, read_result

_ADS_FROM, _TIMES_FROM = "passrate.json", "ladder.json"
_MODES = {"cd": "filter afterwards", "union": "the paper's matchers", "exact": "GRACE"}
_PRECISIONS = {"bf16": "GRACE, bf16", "fp8": "GRACE, fp8"}
_COLOURS = ("#c3cad4", "#7fa6d6", "#1f4e8c")
_PAPER_RUNG, _OWN_RUNG = "D3", "D4"


def draw_overview(results: Path) -> list[Path]:
    """Draw the picture next to the result files, if both of its tables were measured."""
    if not all((results / name).exists() for name in (_ADS_FROM, _TIMES_FROM)):
        return []
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    ads, times = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_groups(
        ads,
        "Eligible ads that a request generates",
        list(_MODES.values()),
        eligible_ads(read_result(results / _ADS_FROM)["rows"]),
    )
    _draw_groups(
        times,
        "Time of a batch of 16, ms",
        ["the paper, GH200", *_PRECISIONS.values()],
        batch_times(read_result(results / _TIMES_FROM)["rows"]),
    )
    drawn = results / "overview.png"
    figure.savefig(drawn, dpi=110)
    return [drawn]


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
        axes.bar_label(
            bars, [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values]
        )
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_yticks([])
    axes.margins(y=0.15)
    axes.set_title(title, fontsize=13)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.legend(frameon=False)
