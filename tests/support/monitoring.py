"""The files of docker/monitoring, and the programs that read them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
DASHBOARD, ALERTS, ALERTS_TEST = (
    FOLDER / name for name in ("dashboard.json", "alerts.yaml", "alerts_test.yaml")
)


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip the test if one of these programs is not installed, and name it."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def rules() -> list[dict[str, Any]]:
    """Return every rule of alerts.yaml, those that record included."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}
