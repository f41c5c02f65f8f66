"""`grace serve` as a child process that ends with its owner, and the events in its log."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

from grace.bench.child_process import ChildProcess
from grace.configs.yaml_loader import read_yaml

# Not the `grace` script: its place depends on the installation, the package's does not.
GRACE_SERVE = (sys.executable, "-c", "from grace.cli.main import run; run()", "serve")

START_SECONDS = 120.0
STOP_SECONDS = 60.0
SCRAPE_SECONDS = 10.0

FREE_PORTS: dict[str, dict[str, Any]] = {
    "listen": {"port": 0, "linger_seconds": 0.0},
    "admin": {"port": 0},
    "metrics": {"port": 0},
    "logs": {"format": "json"},
}


def write_server_config(
    file: Path, snapshots: Path, checkpoint: Path, profiles: Path, /, **sections: Any
) -> Path:
    """Write a configuration with free ports, which the server logs as JSON, and return its path.

    profiles  a file with a section `generation`
    sections  other values that differ from the defaults; a section is merged over the free ports'
    """
    values: dict[str, Any] = {
        "snapshots": str(snapshots.resolve()),
        "checkpoint": str(checkpoint.resolve()),
        "generation": read_yaml(profiles)["generation"],
        **FREE_PORTS,
    }
    for name, given in sections.items():
        before = values.get(name)
        if isinstance(before, dict) and isinstance(given, Mapping):
            given = {**before, **given}
        values[name] = given
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return file


class RunningServer(ChildProcess):
    """A server that is ready inside `with`; after the block, it has finished its calls and ended.

    config         the configuration, whose logs.format must be json
    options        other options of `grace serve`
    start_seconds  time limit for the start; a large model and catalogue take minutes
    command        what to run instead of `grace serve`
    environment    variables that the server has besides this process's
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        *options: str | Path,
        start_seconds: float = START_SECONDS,
        command: Sequence[str] = GRACE_SERVE,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        whole = [*command, "--config", str(config), *map(str, options)]
        super().__init__("the server", whole, log, start_seconds, environment)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._stop()
        finally:
            super().__exit__(kind, *error)
            if kind is not None:  # the log may be in a folder that goes, too
                self._print_errors()

    @property
    def address(self) -> str:
        """host:port of Retrieve."""
        return str(self.events("listening")[0]["retrieve"])

    @property
    def admin_address(self) -> str:
        """host:port of Admin."""
        return str(self.events("listening")[0]["admin"])

    def is_ready(self) -> bool:
        return bool(self.events("ready"))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's entries of this event so far."""
        found = []
        for line in self.lines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line is incomplete, or not from the server
                continue
            if isinstance(entry, dict) and entry.get("event") == name:
                found.append(entry)
        return found

    def metrics(self) -> dict[tuple[str, str], float]:
        """Scrape the server; return each number by its name and the value of its first label."""
        address = self.events("listening")[0]["metrics"]
        with urlopen(f"http://{address}/metrics", timeout=SCRAPE_SECONDS) as page:
            families = text_string_to_metric_families(page.read().decode())
        return {
            (sample.name, next(iter(sample.labels.values()), "")): sample.value
            for family in families
            for sample in family.samples
        }

    def _print_errors(self) -> None:
        """Print the log's errors: replies do not say what broke in the server."""
        for line in self.lines():
            if '"level": "error"' in line or '"level": "critical"' in line:
                print(f"the server's log: {line}", file=sys.stderr)

    def _stop(self) -> None:
        """Send SIGTERM, once; the server must finish its calls and exit with 0."""
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end {STOP_SECONDS:g} s after SIGTERM: killed") from None
        if code:
            raise self.failed(f"ended with exit code {code}")
