"""The parts that followers of a file and of a folder share: waiting for the server, and alerts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn

from grace.client.admin_client import AdminClient
from grace.configs.errors import CallError
from grace.proto.retrieval_pb2 import UpdateAdsRequest

LOOK_SECONDS, RETRY_SECONDS, PAGE_SECONDS = 0.1, 1.0, 60.0
_MAY_PASS = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL")


def may_pass(error: CallError) -> bool:
    """Return whether the same call may succeed later."""
    return error.code in _MAY_PASS or error.reason == "too_many_updates"


class Follower(ABC):
    """Sends what a program writes to one server.

    It calls `show` with what has happened, and whether that is a fault.
    """

    def __init__(
        self, client: AdminClient, timeout: float, show: Callable[[str, bool], None]
    ) -> None:
        self.sequence = 0  # the last update that was sent and is in force
        self._client, self._timeout, self._show = client, timeout, show
        self._waits_after = ""  # the error of a call that is tried again
        self._paged = -math.inf  # when the server's alerts were last made to fire

    @abstractmethod
    def run(self) -> NoReturn:
        """Follow what a program writes until an exception ends it. Wait while no server answers.

        Raise a CallError if the server does not take updates.
        """

    def _wait_after(self, error: CallError) -> None:
        if str(error) != self._waits_after:
            self._waits_after = str(error)
            self._show(self._waits_after, True)
        sleep(RETRY_SECONDS)

    def _page(self, faulty: bool) -> None:
        """Send an empty update each minute while there is a fault: the server refuses it, so that
        its alerts fire."""
        if not faulty:
            self._paged = -math.inf
        elif monotonic() >= self._paged + PAGE_SECONDS:
            self._paged = monotonic()
            with suppress(CallError):
                self._client.update_ads(UpdateAdsRequest(), self._timeout)
