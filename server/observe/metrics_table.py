"""The table of all metrics in docs/operations.md, made from those that a server has.

python -m grace.server.observe.metrics_table docs/operations.md     writes the part between the
two marks
"""

import sys
from pathlib import Path

import torch

from grace.configs.marked_text import rewrite
from grace.server.observe.loop_lag import LoopLag
from grace.server.observe.metrics import Metric, Metrics
from grace.server.server_state import ServerState

__all__ = ["metrics_table"]


def metrics_table() -> str:
    """Markdown: a row for each metric, those of a GPU included."""
    metrics = Metrics(ServerState(), LoopLag(), torch.device("cuda"))
    rows = map(_row, sorted(metrics.described, key=lambda metric: metric.name))
    return "\n".join(("| metric | kind | meaning |", "| --- | --- | --- |", *rows)) + "\n"


def _row(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    return f"| `{metric.name}{labels}` | {metric.kind} | {metric.means} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name), "metrics", metrics_table())
