"""The loss curve as a picture. Only this module needs matplotlib, from the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_WINDOWS = 40  # in the whole curve; the running mean spans one


def plot_loss(losses: Sequence[float], title: str, path: Path) -> None:
    """Write a PNG of the loss of every step and its running mean."""
    values = np.array(losses)
    window = max(1, len(values) // _WINDOWS)
    smooth = np.convolve(values, np.full(window, 1 / window), mode="valid")
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(np.arange(1, len(values) + 1), values, color="#b8c4d6", linewidth=0.8, label="step")
    steps = np.arange(len(smooth)) + 1 + window // 2
    axes.plot(steps, smooth, color="#1f4e8c", linewidth=1.6, label=f"mean of {window}")
    axes.set(xlabel="step", ylabel="-log p(SID), nats", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
