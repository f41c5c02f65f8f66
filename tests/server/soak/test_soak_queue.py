"""Full queues, deadlines, cancelled calls and bad requests, repeated with random sizes."""

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.proto.retrieval_pb2 import RetrieveResponse
from support.faults import Faults
from support.occupied import FAULTY_PLACES, occupied_engine, start_waiting, wait_waiting
from support.retrieve_calls import (
    Call,
    Caller,
    Counters,
    assert_counters_conserve,
    assert_ends_agree,
    counted_calls,
    message,
)
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "120")) / 4
BATCH = 16
BAD: Sequence[Mapping[str, Any]] = (
    {"features": {"categorical": {"device": {"ids": ["40"]}}}},
    {"features": {"dense": {"hour": {"values": [1.0, 2.0]}}}},
)
"""Bad requests that only the input stage detects, when they are in a batch."""


@pytest.fixture(scope="module", params=[0, 2], ids=("gRPC in the server", "in two relays"))
def server(
    request: pytest.FixtureRequest, serving_files: ServingFiles, tmp_path_factory: Any
) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("faults")
    config = serving_files.write_config(
        f"queue{request.param}.yaml",
        listen={"front_ends": request.param},
        batching={"max_waiting": FAULTY_PLACES},
        generation={"max_batch": BATCH},
    )
    with ServerProcess(config, faults=Faults(folder)) as process:
        yield process


def rounds() -> Iterator[random.Random]:
    """Yield a generator of random numbers for each round, until the soak ends."""
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        yield random.Random(number)
        number += 1


def wait_done(server: ServerProcess, calls: Sequence[Call], count: int) -> None:
    server.wait_until(lambda: sum(call.done for call in calls) >= count, f"{count} calls ended")


def test_a_burst_has_one_refusal_for_each_call_beyond_the_queue(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = message(serving_files.requests[0])
    with counted_calls(server) as caller:
        for draw in rounds():
            surplus = draw.randrange(1, 97)
            with occupied_engine(server, caller, serving_files.requests[0]) as taken:
                burst = [caller.start(request) for _ in range(FAULTY_PLACES + surplus)]
                wait_done(server, burst, surplus)
                assert not any(call.done for call in taken)
            ends = [call.outcome().end for call in burst]
            assert ends.count("queue_full") == surplus
            assert ends.count("OK") == FAULTY_PLACES
            assert all(call.outcome().ok for call in taken)


def test_calls_with_too_little_time_are_refused_early_and_never_executed(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    """A deadline of 40 ms while a batch of 60 ms runs."""
    request = serving_files.requests[0]
    hasty_ends: list[str] = []
    before = Counters.of(server)
    patient, hasty = Caller(server.address), Caller(server.address)
    with server.faults.slow("generate", 0.06):
        # The server learns what batches take, by their sizes.
        for number in range(4 * 11):
            burst = [patient.start(message(request)) for _ in range(1 + number % 4)]
            assert all(call.outcome().ok for call in burst)
        server.faults.forget()
        ahead = [patient.start(message(request)) for _ in range(3)]
        for draw in rounds():
            call = hasty.start(message(request, request_id="hasty"), seconds=0.04)
            time.sleep(draw.random() * 0.03)
            ahead.append(patient.start(message(request)))
            outcome = call.outcome()
            assert outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED
            hasty_ends.append(outcome.end)
            assert ahead.pop(0).outcome().ok
        assert all(call.outcome().ok for call in ahead)
    assert "hasty" not in server.faults.reached("generate")
    assert hasty_ends.count("deadline_unmeetable") >= 0.95 * len(hasty_ends)
    counted = assert_counters_conserve(server, patient.sent + hasty.sent, before)
    assert_ends_agree(patient.ends + hasty.ends, counted.ends)
    patient.close()
    hasty.close()


def test_every_cancelled_call_is_released_and_no_other_is_lost(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[0]
    with counted_calls(server) as caller:
        for draw in rounds():
            names = [f"waiting{i}" for i in range(draw.randrange(1, FAULTY_PLACES))]
            with occupied_engine(server, caller, request) as calls:
                waiting = start_waiting(server, caller, request, *names)
                cancelled = draw.sample(range(len(names)), draw.randrange(len(names) + 1))
                for place in cancelled:
                    waiting[place].cancel()
                wait_waiting(server, len(names) - len(cancelled))
                calls[draw.randrange(2)].cancel()
            kept = [call for i, call in enumerate(waiting) if i not in cancelled]
            assert all(call.outcome().ok for call in kept)
            codes = [call.outcome().code for call in calls]
            assert sorted(code.name for code in codes) == ["CANCELLED", "OK"]
            executed = server.faults.reached("input")
            assert executed.isdisjoint(names[place] for place in cancelled)
            server.wait_until(lambda: server.metric("grace_open_calls") == 0, "all are released")


def test_one_bad_request_fails_alone_in_every_full_batch(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    """The other replies equal those of a batch without the bad request, to the bit."""
    good = {f"good{i}": request for i, request in enumerate(serving_files.requests[: BATCH - 1])}
    with counted_calls(server) as caller:
        expected = batch_of(server, caller, good)
        for draw in rounds():
            bad = draw.choice(BAD)
            names = list(good)
            names.insert(draw.randrange(BATCH), "bad")
            full = {name: good.get(name, bad) for name in names}
            with occupied_engine(server, caller, serving_files.requests[0]):
                calls = start_all(server, caller, full)
            assert calls.pop("bad").outcome().reason == "invalid_field"
            assert "bad" in next(x for x in server.faults.batches("input") if len(x) == BATCH)
            assert {name: plain(call) for name, call in calls.items()} == expected


def batch_of(
    server: ServerProcess, caller: Caller, requests: Mapping[str, Mapping[str, Any]]
) -> dict[str, bytes]:
    """The replies of one batch of these requests."""
    with occupied_engine(server, caller, requests["good0"]):
        calls = start_all(server, caller, requests)
    return {name: plain(call) for name, call in calls.items()}


def start_all(
    server: ServerProcess, caller: Caller, requests: Mapping[str, Mapping[str, Any]]
) -> dict[str, Call]:
    calls = {}
    for name, request in requests.items():
        (calls[name],) = start_waiting(server, caller, request, name)
    return calls


def plain(call: Call) -> bytes:
    """A reply without its timings, which differ each time."""
    reply: RetrieveResponse = call.outcome().response
    reply.ClearField("timings")
    return reply.SerializeToString(deterministic=True)
