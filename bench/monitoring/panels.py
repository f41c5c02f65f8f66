"""The panels of a Grafana dashboard's file, with their expressions as Grafana would send them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """`name` has {{label}} where a series' label belongs."""

    expr: str
    name: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """
    kind    timeseries, stat, or the heading of a row, which has no queries
    place   its columns (of 24) and lines: x, y, w and h
    """

    title: str
    kind: str
    place: dict[str, int]
    queries: Sequence[PanelQuery] = ()
    unit: str = ""
    stacked: bool = False
    no_value: str = "no data"


def read_panels(file: Path, rate_interval: str) -> list[DashboardPanel]:
    """Read a dashboard, with all jobs and replicas chosen, and this time for the range of rates."""
    text = file.read_text(encoding="utf-8")
    for variable, value in (("__rate_interval", rate_interval), ("job", ".*"), ("instance", ".*")):
        text = text.replace(f"${variable}", value)
    return [_panel(panel) for panel in json.loads(text)["panels"]]


def _panel(panel: dict[str, Any]) -> DashboardPanel:
    place = panel["gridPos"]
    if panel["type"] == "row":
        return DashboardPanel(panel["title"], "row", place)
    defaults = panel["fieldConfig"]["defaults"]
    stacking = defaults.get("custom", {}).get("stacking", {})
    return DashboardPanel(
        title=panel["title"],
        kind=panel["type"],
        place=place,
        queries=[PanelQuery(each["expr"], each["legendFormat"]) for each in panel["targets"]],
        unit=defaults["unit"],
        stacked=stacking.get("mode") == "normal",
        no_value=defaults.get("noValue", "no data"),
    )
