"""Decide when a client retries a call, and how long it waits before.

`Retrieve` only reads, so a second attempt is always safe. It is useful only if the server says when
to retry, or if another server, or this one a moment later, may accept the call. A client that
gets many refusals stops its retries: they would add to the load that made the server refuse.
"""

import random
import threading
import time
from dataclasses import dataclass

from grace.client.connection import FailedCall, tls_fault
from grace.configs.errors import InputError


@dataclass(frozen=True, slots=True)
class Retry:
    """The settings of gRPC's own retries, by the same names. Times are in seconds.

    max_attempts        attempts of one call, the first one included
    initial_backoff     the longest wait before the second attempt, if the server gives no advice
    max_backoff         the longest wait before a later one
    backoff_multiplier  how much longer each wait is than the one before
    max_tokens          a failed attempt takes a token, and below half of them there are no retries
    token_ratio         the tokens that each answer gives back
    """

    max_attempts: int = 4
    initial_backoff: float = 0.05
    max_backoff: float = 1.0
    backoff_multiplier: float = 2.0
    max_tokens: float = 100.0
    token_ratio: float = 0.1

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InputError(f"max_attempts: {self.max_attempts}; give 1 or more")
        for name in ("initial_backoff", "max_backoff", "backoff_multiplier", "max_tokens"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: {getattr(self, name)}; give a number above 0")


DEFAULT_RETRY = Retry()


class RetryBudget:
    """The tokens of one client, which all its threads share."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._tokens = retry.max_tokens
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Count a failed attempt; return whether there are enough tokens for a retry."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1)
            return self._tokens > self._retry.max_tokens / 2

    def give_back(self) -> None:
        """Count an answer."""
        with self._lock:
            self._tokens = min(self._retry.max_tokens, self._tokens + self._retry.token_ratio)


class Attempts:
    """The attempts of one call, which together have `timeout` seconds."""

    def __init__(self, retry: Retry | None, budget: RetryBudget, timeout: float) -> None:
        if not 0 < timeout < float("inf"):
            raise InputError(f"timeout: {timeout}; give a number of seconds above 0")
        self._retry = retry
        self._budget = budget
        self._end = time.monotonic() + timeout
        self.number = 1

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def answered(self) -> None:
        self._budget.give_back()

    def wait_after(self, failed: FailedCall) -> float | None:
        """Return the seconds to wait before the next attempt, or None if this one was the last.

        The wait is never shorter than the server's push-back, and never reaches the deadline.
        """
        if self._retry is None or not is_worth_retrying(failed):
            return None
        has_budget = self._budget.take()
        if not has_budget or self.number >= self._retry.max_attempts:
            return None
        # Callers that were refused together must not come back together.
        if failed.push_back is None:
            power = self._retry.backoff_multiplier ** (self.number - 1)
            longest = min(self._retry.initial_backoff * power, self._retry.max_backoff)
            seconds = random.uniform(0.5, 1.0) * longest
        else:
            seconds = random.uniform(1.0, 1.25) * failed.push_back
        if seconds >= self.seconds_left:
            return None
        return seconds


def is_worth_retrying(failed: FailedCall) -> bool:
    """Return whether a later attempt of the same request may succeed."""
    if failed.push_back is not None and failed.push_back < 0:  # gRPC's way to forbid it
        return False
    match failed.code:
        case "UNAVAILABLE":  # starting, shutting down, or no server; but a wrong certificate stays
            return tls_fault("", failed.text) is None
        case "RESOURCE_EXHAUSTED":  # without advice, the request itself is too large
            return failed.push_back is not None
        case "CANCELLED":  # not by this client: the server closed its port
            return not failed.reason
        case "INTERNAL":  # the server is about to end; other faults would come back
            return failed.reason == "stage_died"
    return False
