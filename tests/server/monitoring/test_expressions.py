"""Every expression of dashboard and alerts, on a real Prometheus that scrapes a real server."""

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from grace.bench.child_process import ChildProcess, free_port
from support.monitoring import ALERTS, DASHBOARD, needs, rules
from support.retrieve_calls import SteadyCallers, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

JOB = "grace"
"""The name of the job that alerts.yaml expects."""

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0


class Prometheus(ChildProcess):
    """Runs inside `with`, and keeps its data in `folder`, which must exist.

    targets  host:port of each server's metrics
    rules    a file of rules, evaluated as often as the servers are scraped
    """

    def __init__(
        self, folder: Path, targets: Sequence[str], scrape_seconds: float, rules: Path
    ) -> None:
        often = ("scrape_interval", "scrape_timeout", "evaluation_interval")
        config = {
            "global": dict.fromkeys(often, f"{round(scrape_seconds * 1000)}ms"),
            "rule_files": [str(rules.resolve())],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._address = f"127.0.0.1:{free_port()}"
        command = [
            str(shutil.which("prometheus")),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        super().__init__("prometheus", command, folder / "prometheus.log", START_SECONDS)

    def is_ready(self) -> bool:
        try:
            with urlopen(f"http://{self._address}/-/ready", timeout=ANSWER_SECONDS):
                return True
        except (HTTPError, URLError, ConnectionError):
            return False

    def query(self, expr: str) -> list[float]:
        """Evaluate an expression now, and return the number of each series that has one."""
        values = [float(each["value"][1]) for each in self._ask("query", query=expr)["result"]]
        return [value for value in values if math.isfinite(value)]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self._ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def rule_faults(self) -> list[str]:
        """Return the rules whose last evaluation failed, with the faults."""
        groups = self._ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]

    def _ask(self, path: str, **given: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urlencode(given)}"
        with urlopen(url, timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)["data"]


pytestmark = [needs("prometheus"), pytest.mark.subprocess]

SCRAPE_SECONDS = 0.5
RATE_INTERVAL = "1m"
"""Long enough that a busy machine's missing scrapes leave two samples."""
RISES_FIRST = ("grace:answers:rate5m > 0", "rate(grace_request_failures_total[1m]) > 0")
NOT_HERE = {"GPU memory": "on a CPU"}
"""Panels without data on this server."""
NO_SELECTOR_HERE = {'up{job="grace-envoy"}'}
MAY_FIRE = {"GraceErrorBudgetBurns", "GraceLatencyBudgetBurns"}
"""A server on a busy machine is late, and refuses calls."""

_SELECTOR = re.compile(r"\b((?:grace|process)_\w+|up)(\{[^}]*\})")
_ALTERNATIVES = re.compile(r'(\w+)=~"([^"]+)"')


@pytest.fixture(scope="module")
def prometheus(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """It scrapes a server that answers, and refuses some calls."""
    folder = tmp_path_factory.mktemp("monitoring")
    config = serving_files.write_config("monitored.yaml", state_dir=str(folder / "state"))
    calls = [*(message(request) for request in serving_files.requests[:9]), b"\xff"]
    with (
        ServerProcess(config) as server,
        Prometheus(folder, [server.metrics_address], SCRAPE_SECONDS, ALERTS) as started,
        SteadyCallers(server.address, calls, pause=0.05),
    ):
        for expr in RISES_FIRST:
            server.wait_until(partial(has_data, started, expr), f"{expr} has data")
        yield started


def has_data(prometheus: Prometheus, expr: str) -> bool:
    return bool(prometheus.query(expr))


def queries() -> dict[str, list[str]]:
    """Return the expressions of each panel, with all jobs and replicas chosen."""
    text = DASHBOARD.read_text(encoding="utf-8").replace("$__rate_interval", RATE_INTERVAL)
    panels = json.loads(text.replace("$job", ".*").replace("$instance", ".*"))["panels"]
    return {
        panel["title"]: [target["expr"] for target in panel.get("targets", ())] for panel in panels
    }


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    found = {
        (title, expr): has_data(prometheus, expr)
        for title, exprs in queries().items()
        for expr in exprs
    }
    assert {title for title, _ in found} > NOT_HERE.keys()
    assert found == {(title, expr): title not in NOT_HERE for title, expr in found}


def test_the_fleet_scales_by_numbers_that_prometheus_has(
    prometheus: Prometheus, repository: Path
) -> None:
    file = repository / "docker/kubernetes/overlays/fleet/scaling.yaml"
    triggers = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["triggers"]
    assert len(triggers) == 2
    for trigger in triggers:
        assert has_data(prometheus, trigger["metadata"]["query"])
        assert trigger["metadata"]["ignoreNullValues"] == "false"  # none is no reason to shrink


def selectors() -> set[str]:
    """Return every selector of the rules; of several values of a label, one each."""
    found = set()
    for rule in rules():
        for metric, labels in _SELECTOR.findall(rule["expr"]):
            several = _ALTERNATIVES.search(labels)
            values = several[2].split("|") if several else [""]
            for value in values:
                one = labels.replace(several[0], f'{several[1]}="{value}"') if several else labels
                found.add(f"{metric}{' '.join(one.split())}")
    return found


def test_every_rule_reads_series_that_a_server_has_and_none_fires_without_a_reason(
    prometheus: Prometheus,
) -> None:
    assert len(selectors()) > len(rules())
    missing = {each for each in selectors() if not has_data(prometheus, each)}
    assert missing == NO_SELECTOR_HERE
    assert prometheus.rule_faults() == []
    assert prometheus.firing() <= MAY_FIRE
