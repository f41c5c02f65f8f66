"""Decide when a client retries a call, and how long it waits before.

`Retrieve` only reads, so a second attempt is always safe. It is useful only if the server says when
to retry, or if another server, or this one a moment later, may accept the call. A client that
gets many refusals stops its retries: they would add to the load that made the server refuse.
"""

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

from grace.client.connection import FailedCall, lasting_fault
from grace.configs.errors import InputError

SERVICE_CONFIG = Path(__file__).with_name("service_config.json")
"""The turns and retries of a client in any language: docs/clients.md shows its use."""

CONFIG: Any = json.loads(SERVICE_CONFIG.read_text(encoding="utf-8"))
((_METHOD,), _TOKENS) = CONFIG["methodConfig"], CONFIG["retryThrottling"]
_POLICY = _METHOD["retryPolicy"]
MAX_ATTEMPTS: int = _POLICY["maxAttempts"]
GROWTH: float = _POLICY["backoffMultiplier"]
FIRST_WAIT, LONGEST_WAIT = (
    float(_POLICY[name].rstrip("s")) for name in ("initialBackoff", "maxBackoff")
)
"""The longest waits, in seconds, before the second attempt and before any, without advice."""


class RetryBudget:
    """The tokens of one client, which all its threads share.

    A failed attempt takes one. Below half of them there are no retries. An answer gives some back.
    """

    def __init__(self) -> None:
        self._tokens = self._most = float(_TOKENS["maxTokens"])
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Count a failed attempt; return whether there are enough tokens for a retry."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1)
            return self._tokens > self._most / 2

    def give_back(self) -> None:
        """Count an answer."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + _TOKENS["tokenRatio"])


class Attempts:
    """The attempts of one call, which together have `timeout` seconds."""

    def __init__(self, budget: RetryBudget, timeout: float, *, retries: bool = True) -> None:
        if not 0 < timeout < float("inf"):
            raise InputError(f"timeout: {timeout}; give a number of seconds above 0")
        self._retries = retries
        self._budget = budget
        self._end = time.monotonic() + timeout
        self.number = 1

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def wait_after(self, failed: FailedCall) -> float | None:
        """Return the seconds to wait before the next attempt, or None if this one was the last.

        The wait is never shorter than the server's push-back, and never reaches the deadline.
        """
        if not self._retries or not is_worth_retrying(failed):
            return None
        if not self._budget.take() or self.number >= MAX_ATTEMPTS:
            return None
        # Callers that were refused together must not come back together.
        if failed.push_back is None:
            longest = min(FIRST_WAIT * GROWTH ** (self.number - 1), LONGEST_WAIT)
            seconds = random.uniform(0.5, 1.0) * longest
        else:
            seconds = random.uniform(1.0, 1.25) * failed.push_back
        return seconds if seconds < self.seconds_left else None


def is_worth_retrying(failed: FailedCall) -> bool:
    """Return whether a later attempt of the same request may succeed."""
    if failed.push_back is not None and failed.push_back < 0:  # gRPC's way to forbid it
        return False
    match failed.code:
        case "UNAVAILABLE":  # starting, shutting down, or no server: one may come
            return lasting_fault("", failed.text) is None
        case "RESOURCE_EXHAUSTED":  # without advice, the request itself is too large
            return failed.push_back is not None
        case "CANCELLED":  # not by this client: the server closed its port
            return not failed.reason
        case "INTERNAL":  # the server is about to end; other faults would come back
            return failed.reason == "stage_died"
    return False
