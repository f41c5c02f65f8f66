"""Draw the picture of `grace demo`: ads found with the same compute, with or without targeting.

Only this module of the package needs matplotlib, from the extra `plots`.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grace.catalogues.demonstration import Comparison

_OWN, _OTHERS = "#1f4e8c", "#cdd5e0"


def draw(comparisons: Sequence[Comparison], searched: str, file: Path) -> None:
    """Write a PNG with a bar for each way to decode; `searched` says how wide it searches."""
    figure = Figure(figsize=(8, 1.3 + 0.8 * len(comparisons)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    bars = [
        (f"{each.name}: {way} targeting", outcome)
        for each in comparisons
        for way, outcome in (("without", each.without), ("with", each.targeted))
    ]
    places = [place + 0.4 * (place // 2) for place in range(len(bars))]
    own = [outcome.eligible_ads for _, outcome in bars]
    others = [outcome.ads - outcome.eligible_ads for _, outcome in bars]
    axes.barh(places, own, color=_OWN, label="for the user")
    axes.barh(places, others, left=own, color=_OTHERS, label="not for the user")
    for place, (_, outcome) in zip(places, bars, strict=True):
        shown = f" {outcome.eligible_ads:.0f} of {outcome.ads:.0f}"
        axes.text(outcome.ads, place, shown, va="center")
    axes.set_yticks(places, [name for name, _ in bars])
    axes.set(xlabel="ads below the generated SIDs", title=f"The same compute: {searched}")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(file, dpi=110)
