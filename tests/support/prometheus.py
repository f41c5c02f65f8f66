"""A Prometheus process that scrapes servers, and its answers to queries."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from grace.bench.child_process import ChildProcess, free_port

JOB = "grace"
"""The name that alerts.yaml expects of the job."""

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

    def annotations(self) -> dict[str, Mapping[str, str]]:
        """Return the texts of the alerts that are pending or fire, by their names."""
        alerts = self._ask("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["annotations"] for each in alerts}

    def rule_faults(self) -> list[str]:
        """Return the rules whose last evaluation failed, with the faults."""
        groups = self._ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]

    def _ask(self, path: str, **given: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urlencode(given)}"
        with urlopen(url, timeout=ANSWER_SECONDS) as reply:
            return json.load(reply)["data"]
