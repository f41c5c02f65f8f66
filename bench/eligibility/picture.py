"""Draw the picture of docs/eligibility.md from a result file. Needs matplotlib (`plots`).

python -m grace.bench.eligibility.picture bench/results/cpu-2core/passrate.json
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from grace.bench.figures import Axes, Figure
from grace.bench.result_file import Row, read_result

_LINES = {
    "cd": ("filter afterwards", "#98a3b3", "s"),
    "union": ("test unions of rules", "#c9a35b", "^"),
    "static": ("k unions, static", "#8cbf9f", "v"),
    "dynamic": ("k unions, dynamic", "#7fa6d6", "D"),
    "exact": ("test exactly", "#1f4e8c", "o"),
}
"""The name, colour and mark of each way to decode."""

_SIDES = {
    "paper": "Ads near each other have similar rules",
    "shuffled": "Rules do not follow the SIDs",
}


def draw_picture(result: Path) -> Path:
    """Draw eligible ads by selectivity, one line per way, next to the result file."""
    rows = [row for row in read_result(result)["rows"] if row["table"] == "selectivity"]
    sweep = [row for row in rows if row["audience"] == "sweep"]
    sides = [name for name in _SIDES if any(row["catalogue"] == name for row in sweep)]
    figure = Figure(figsize=(5.5 * len(sides), 4.4), layout="constrained")
    figure.suptitle("How many ads that the user may see does one request find?")
    for axes, side in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True):
        _draw(axes, [row for row in sweep if row["catalogue"] == side])
        axes.set_title(_SIDES[side], fontsize=10)
    drawn = result.with_suffix(".png")
    figure.savefig(drawn, dpi=110)
    return drawn


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
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
    print(draw_picture(Path(sys.argv[1])))
