"""The panels of a Grafana dashboard's file, with their expressions as Grafana would send them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """`name` has {{label}} where a series' label belongs."""

    expr: str
    name: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel, in the row that begins above it; `width` is in columns, of which there are 24."""

    row: str
    title: str
    kind: str  # timeseries or stat
    unit: str
    stacked: bool
    width: int
    no_value: str
    queries: Sequence[PanelQuery]


def read_panels(file: Path, rate_interval: str) -> list[DashboardPanel]:
    """Read a dashboard, with all jobs and replicas chosen, and this time for the range of rates."""
    panels, row = [], ""
    for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        defaults = panel["fieldConfig"]["defaults"]
        stacking = defaults.get("custom", {}).get("stacking", {})
        queries = [
            PanelQuery(_filled(target["expr"], rate_interval), target["legendFormat"])
            for target in panel["targets"]
        ]
        panels.append(
            DashboardPanel(
                *(row, panel["title"], panel["type"], defaults["unit"]),
                *(stacking.get("mode") == "normal", panel["gridPos"]["w"]),
                *(defaults.get("noValue", ""), queries),
            )
        )
    return panels


def _filled(expr: str, rate_interval: str) -> str:
    for variable, value in (
        ("$__rate_interval", rate_interval),
        ("$job", ".*"),
        ("$instance", ".*"),
    ):
        expr = expr.replace(variable, value)
    return expr
