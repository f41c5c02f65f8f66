"""A Prometheus process that scrapes servers, and its answers to queries."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from grace.bench.child_process import ChildProcess, free_port
from grace.configs.errors import InputError

JOB = "grace"
"""The name that alerts.yaml expects of the job."""

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: times in Unix seconds, and values, which may be NaN."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]

    @property
    def has_number(self) -> bool:
        return any(map(math.isfinite, self.values))


class Prometheus(ChildProcess):
    """Runs inside `with`, and keeps its data in `folder`, which must exist.

    targets  host:port of each server's metrics
    rules    a file of rules, evaluated as often as the servers are scraped
    """

    def __init__(
        self, folder: Path, targets: Sequence[str], scrape_seconds: float, rules: Path | None = None
    ) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise InputError("prometheus: not installed; Debian's package has this name")
        interval = f"{round(scrape_seconds * 1000)}ms"
        config = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [] if rules is None else [str(rules.resolve())],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._address = f"127.0.0.1:{free_port()}"
        command = [
            program,
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

    def query(self, expr: str) -> list[Series]:
        """Evaluate an expression now."""
        found = self._ask("query", query=expr)["result"]
        return [Series(each["metric"], *_columns([each["value"]])) for each in found]

    def query_range(self, expr: str, begin: float, end: float, step: float) -> list[Series]:
        """Evaluate an expression at `begin`, and every `step` seconds after it until `end`."""
        given = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found = self._ask("query_range", query=expr, **given)["result"]
        return [Series(each["metric"], *_columns(each["values"])) for each in found]

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
        try:
            with urlopen(url, timeout=ANSWER_SECONDS) as reply:
                return json.load(reply)["data"]
        except HTTPError as error:
            with error:
                fault = json.load(error).get("error", "")
            raise InputError(f"{given.get('query', path)}: {fault}") from None


def _columns(pairs: Sequence[tuple[float, str]]) -> tuple[list[float], list[float]]:
    return [float(at) for at, _ in pairs], [float(value) for _, value in pairs]
