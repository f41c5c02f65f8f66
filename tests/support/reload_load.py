"""Calls of a server that loads the whole time, each answer compared with the plain one."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Self

from grace.bench.load.soak.holdings import holdings_of
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import operator_of
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess

LOAD_EVERY_SECONDS = 1.0


class CheckedClients:
    """Call one request after the other while inside.

    answers  by the version that answered
    faults   calls that failed, and answers that are not the plain ones
    """

    def __init__(
        self,
        address: str,
        live: LiveRoot,
        expected: Mapping[tuple[str, int], RetrieveResponse],
        clients: int = 3,
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.faults: list[str] = []
        self._address = address
        self._expected = expected
        self._requests = [message(request) for request in live.requests]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, first: int) -> None:
        caller, number = Caller(self._address), first
        while not self._stop.is_set():
            outcome = caller.call(self._requests[number % len(self._requests)])
            number += 1
            try:
                assert_plain(outcome.response, self._expected)
            except AssertionError as error:
                with self._lock:
                    self.faults.append(str(error))
            else:
                with self._lock:
                    self.answers[outcome.response.snapshot_version] += 1
        caller.close()


def memory_while_loading(
    server: ServerProcess, seconds: float, least_loads: int = 3
) -> list[float]:
    """Load versions 2 and 1 in turn, one a second; return the server's memory after each load.

    On a busy machine a load may take longer, and the next one follows at once. The loads
    continue until there are `least_loads` of them.
    """
    memory, turn = [], 0
    begin = time.monotonic()
    with operator_of(server) as operator:
        while time.monotonic() < begin + seconds or turn < least_loads:
            assert operator.load(2 - turn % 2).changed
            turn += 1
            memory.append(holdings_of(server.pid).memory_mib)
            time.sleep(max(0.0, begin + turn * LOAD_EVERY_SECONDS - time.monotonic()))
    return memory
