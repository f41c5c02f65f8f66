"""The files of docker/monitoring, a Prometheus that scrapes servers, and calls to scrape about."""

import re
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.retrieve_calls import Call, Caller
from support.server_process import PATIENCE_SECONDS

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
DASHBOARD, ALERTS, ALERTS_TEST = (
    FOLDER / name for name in ("dashboard.json", "alerts.yaml", "alerts_test.yaml")
)

MOST_OPEN = 5000
"""Calls of one client under way: gRPC cancels a call that its caller forgets."""

_DURATION = re.compile(r"\b(\d+)([smhd])\b")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_STRING = re.compile(r'("[^"]*")')


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


def hastened_rules(file: Path, times: float) -> Path:
    """Write alerts.yaml with every duration divided by `times`, so that a test need not wait."""
    content = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in content["groups"]:
        for rule in group["rules"]:
            # A duration in a name, such as rate5m, is part of a word; one in a string is a label's.
            parts = _STRING.split(rule["expr"])
            rule["expr"] = "".join(
                part if part.startswith('"') else _hastened(part, times) for part in parts
            )
            if "for" in rule:
                rule["for"] = _hastened(rule["for"], times)
    file.write_text(yaml.safe_dump(content, sort_keys=False, width=1000), encoding="utf-8")
    return file


def _hastened(text: str, times: float) -> str:
    def shorter(found: re.Match[str]) -> str:
        milliseconds = int(found[1]) * _SECONDS[found[2]] * 1000 / times
        return f"{max(1, round(milliseconds))}ms"

    return _DURATION.sub(shorter, text)


@contextmanager
def steady_calls(
    address: str, messages: Sequence[bytes], seconds_between: float, deadline: float = 10.0
) -> Iterator[None]:
    """Inside, one client calls with each message in turn, whatever the outcomes."""
    ends = threading.Event()
    caller = Caller(address)
    kept = deque[Call](maxlen=MOST_OPEN)

    def call() -> None:
        for message in cycle(messages):
            if ends.wait(seconds_between):
                return
            kept.append(caller.start(message, deadline))

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(PATIENCE_SECONDS)
        caller.close()
