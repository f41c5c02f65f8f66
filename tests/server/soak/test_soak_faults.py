"""Long fault tests: everything at once for minutes, after which nothing may be left over."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import grpc
import pytest

from support.faults import Faults
from support.health import HealthWatch
from support.occupied import occupied_engine
from support.retrieve_calls import (
    Caller,
    Counters,
    assert_counters_conserve,
    assert_ends_agree,
    logged_ends,
    message,
)
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
CLIENTS = 9
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}
CROWD = {
    *ANSWERS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}


class RestlessClient:
    """Calls with deadlines, cancels, and sends what is wrong, until it is stopped."""

    def __init__(self, address: str, frames: Sequence[bytes], seed: int) -> None:
        self.caller = Caller(address)
        self.codes: set[grpc.StatusCode] = set()
        self._frames = frames
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        draw = self._random
        while not self._stop.is_set():
            frame = draw.choice(self._frames)
            seconds = draw.choice([None, None, 5.0, 0.05, 0.005])
            calls = [self.caller.start(frame, seconds) for _ in range(draw.randrange(1, 20))]
            if draw.random() < 0.3:
                time.sleep(draw.random() * 0.02)
                for call in draw.sample(calls, len(calls) // 2):
                    call.cancel()
            self.codes |= {call.outcome().code for call in calls}


def frames_of(files: ServingFiles) -> list[bytes]:
    good = [message(request) for request in files.requests[:31]]
    low = [message(request, priority="LOW", profile="reduced") for request in files.requests[:7]]
    wrong = [message(files.requests[0], sid_space="another"), good[0][:-1], b"\xff" * 63]
    return [*good, *low, *wrong]


@front_ends
def test_a_crowd_that_cancels_expires_and_errs_leaves_nothing_behind(
    serving_files: ServingFiles, front_ends: int
) -> None:
    config = serving_files.write_config(
        "crowd.yaml",
        batching={"max_waiting": 21},
        listen={"front_ends": front_ends},
        logs={"requests": False},
    )
    with ServerProcess(config) as server:
        frames = frames_of(serving_files)
        clients = [RestlessClient(server.address, frames, seed) for seed in range(CLIENTS)]
        time.sleep(SECONDS)
        assert server.running
        for client in clients:
            client.stop()
        sent = sum(client.caller.sent for client in clients)
        # A call that its client gave up may never have become one of the server's.
        wait_until(lambda: server.metric("grace_inflight_requests") == 0, "nothing is in flight")
        seen = Counters.of(server)
        assert seen.ok + seen.failures == seen.calls
        assert seen.calls <= sent
        assert_ends_agree(sum((client.caller.ends for client in clients), Counter()), seen.ends)
        assert set().union(*(client.codes for client in clients)) == CROWD
        last = Caller(server.address)
        assert last.call(frames[0]).ok
        assert_counters_conserve(server, 1, seen)
        last.close()
        for client in clients:
            client.caller.close()
        server.terminate()
        assert server.wait() == 0


@front_ends
@pytest.mark.parametrize("turn", range(7))
def test_no_call_is_lost_however_often_the_server_ends(
    serving_files: ServingFiles, turn: int, front_ends: int
) -> None:
    listen = {"linger_seconds": 2.0, "front_ends": front_ends}
    config = serving_files.write_config(f"turn{turn}.yaml", listen=listen)
    frames = frames_of(serving_files)[:31]
    with ServerProcess(config) as server, HealthWatch(server) as watch:
        callers = [Caller(server.address) for _ in range(CLIENTS)]
        calls = []
        number = 0

        def one_more() -> None:
            nonlocal number
            calls.append(callers[number % CLIENTS].start(frames[number % len(frames)]))
            number += 1

        while number < 100 + 31 * turn:
            one_more()
        server.terminate()
        while not watch.not_serving.is_set():
            one_more()
            time.sleep(0.001)
        codes = {call.outcome().code for call in calls}
        assert server.wait() == 0
        for caller in callers:
            caller.close()
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert logged_ends(server) == sum((caller.ends for caller in callers), Counter())


def test_what_does_not_finish_within_the_bound_is_not_waited_for(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config("bound.yaml", listen={"drain_seconds": 0.3})
    with ServerProcess(config, faults=faults) as server:
        caller = Caller(server.address)
        with occupied_engine(server, caller, request) as calls:
            server.terminate()
            server.wait()
            assert all(not call.outcome().ok for call in calls)
        assert logged_ends(server) == {"cancelled": len(calls)}
        caller.close()
