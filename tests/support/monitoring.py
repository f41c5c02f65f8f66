"""The files of docker/monitoring, a Prometheus that scrapes servers, and calls to scrape about."""

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
