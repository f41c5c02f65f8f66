"""The dashboard shows what its user chose; each alert fires, and has a section in the runbook."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support.monitoring import ALERTS, ALERTS_TEST, DASHBOARD, alerts, needs


def test_each_query_of_the_dashboard_is_about_the_chosen_source_job_and_replicas() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    targets = [target for panel in panels for target in panel.get("targets", ())]
    assert len(targets) > 30
    for target in targets:
        assert target["datasource"]["uid"] == "${datasource}"
        metrics = re.findall(r"\b(?:grace|process)_\w+(.{34})", target["expr"])
        assert set(metrics) == {'{job=~"$job",instance=~"$instance"'}, target["expr"]


def test_the_operator_gets_the_rules_that_prometheus_gets(repository: Path) -> None:
    kept = yaml.safe_load((repository / "docker/kubernetes/base/alerts.yaml").read_text())
    assert kept["spec"] == yaml.safe_load(ALERTS.read_text()), "run make fix"


def test_each_alert_names_its_section_of_the_runbook(repository: Path) -> None:
    runbook = (repository / "docs" / "runbook.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (Grace\w+)$", runbook, re.MULTILINE)
    assert sections == list(alerts())
    for name, alert in alerts().items():
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("docs/runbook.md", name.lower())
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["labels"]["severity"] in ("page", "ticket")


@needs("promtool")
@pytest.mark.subprocess
def test_each_alert_fires_on_simulated_series_of_what_it_is_about() -> None:
    command = ["promtool", "test", "rules", str(ALERTS_TEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = ALERTS_TEST.read_text(encoding="utf-8")
    assert {name for name in alerts() if f'alertname="{name}"' not in tested} == set()
