"""The report as a picture. Only this module needs matplotlib, from the extra `plots`."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grace.index.codebook.report import SidReport

_BLUES = ("#0b2545", "#1f4e8c", "#5b8dc9", "#a9c4e4")


def draw_report(report: SidReport, path: Path) -> None:
    """Write a PNG: the error by level, the items of each code, and the items of each SID."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    errors, codes, sids = figure.subplots(1, 3)
    levels = range(len(report.levels) + 1)
    errors.plot(levels, [1.0, *(level.error for level in report.levels)], "o-", color=_BLUES[1])
    errors.set(xlabel="levels", ylabel="error, relative to the mean vector", title="What is left")
    errors.set(ylim=(0, None), xticks=levels)
    for number, of_codes in enumerate(report.of_codes):
        shares = np.sort(of_codes)[::-1] * len(of_codes) / of_codes.sum()
        place = np.linspace(0, 100, len(shares))
        colour = _BLUES[number % len(_BLUES)]
        codes.plot(place, shares, color=colour, label=f"level {number + 1}")
    codes.axhline(1, color="#999999", linewidth=0.8)
    codes.set(xlabel="% of the codes, fullest first", ylabel="items, in even shares")
    codes.set(title="How evenly codes are used", ylim=(0, None))
    codes.legend()
    sizes, number_of = np.unique(report.of_sids, return_counts=True)
    sids.plot(sizes, number_of, ".", color=_BLUES[1])
    sids.set(xscale="log", yscale="log", xlabel="items of a SID", ylabel="SIDs")
    sids.set(title=f"{report.items:,} items in {report.sids:,} SIDs")
    for axes in (errors, codes, sids):
        axes.grid(alpha=0.3)
    figure.suptitle(report.sid_space)
    figure.savefig(path, dpi=110)
