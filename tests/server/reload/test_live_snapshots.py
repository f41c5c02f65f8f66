"""SIGHUP, many loads at once, and SIGTERM while a server loads."""

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from time import sleep

import grpc
import pytest

from grace.proto.retrieval_pb2 import LoadRequest, RetrieveResponse
from grace.proto.retrieval_pb2_grpc import AdminStub
from grace.server.reload.reloads import MOST_CALLS
from support.faults import Faults
from support.health import HealthWatch
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import operator_of, refused
from support.retrieve_calls import Caller, Outcome, SteadyCallers, logged_ends, message
from support.server_process import PATIENCE_SECONDS, ServerProcess

pytestmark = pytest.mark.subprocess


def test_sighup_looks_at_once_and_never_ends_the_process(live: LiveRoot) -> None:
    config = live.write_config("hup.yaml", watch_seconds=0, listen={"front_ends": 2})
    with ServerProcess(config, ready=False) as server:
        server.wait_log("listening")
        server.signal(signal.SIGHUP)
        server.wait_ready()
        live.publish(2)
        assert server.metric("grace_snapshot_version") == 1
        server.signal(signal.SIGHUP)
        server.wait_until(lambda: server.metric("grace_snapshot_version") == 2, "it follows")
        assert server.wait_log("swapped")[-1]["previous_version"] == 1
        with operator_of(server) as operator, refused() as found:
            operator.roll_back()
        assert found[0].reason == "load_refused"
        assert found[0].text.startswith("state_dir: not set")
        server.terminate()
        relays = server.children
        while server.running:
            for process in (server.pid, *relays):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGHUP)
            sleep(0.001)
        assert server.wait() == 0


def test_few_operators_may_wait_for_their_turn(live: LiveRoot) -> None:
    """A call goes on when its caller gives up, so retries would queue more and more calls."""
    live.publish(2)
    with ServerProcess(live.write_config("turns.yaml", watch_seconds=0)) as server:
        with grpc.insecure_channel(server.admin) as channel:
            load = AdminStub(channel).Load  # type: ignore[no-untyped-call]
            requests = [
                LoadRequest(snapshot_version=1 + place % 2) for place in range(3 * MOST_CALLS)
            ]
            calls = [load.future(request, timeout=PATIENCE_SECONDS) for request in requests]
            ended = [call.exception() for call in calls]
        refusals = [dict(error.trailing_metadata())["grace-reason"] for error in ended if error]
        assert set(refusals) == {"too_many_loads"}
        assert len(ended) - len(refusals) >= MOST_CALLS
        with operator_of(server) as operator:
            assert operator.load(2).snapshot_version == 2


def assert_none_lost(
    seen: list[Outcome], expected: Mapping[tuple[str, int], RetrieveResponse], server: ServerProcess
) -> None:
    """Only a client that learns of the drain too late may get refusals, and may then retry."""
    while not seen[-1].ok:
        assert seen.pop().code is grpc.StatusCode.UNAVAILABLE
    for outcome in seen:
        assert_plain(outcome.response, expected)
    ends = logged_ends(server)
    del ends["draining"]
    assert ends == {"OK": len(seen)}


def test_sigterm_after_swaps_abandons_a_load_and_loses_no_request(
    live: LiveRoot, faults: Faults
) -> None:
    expected, messages = live.expected(1, 2), list(map(message, live.requests))
    # Long enough for a busy machine to notify the clients.
    listen = {"linger_seconds": 2.0, "front_ends": 2}
    config = live.write_config("abandoned.yaml", listen=listen)
    with (
        ServerProcess(config, faults=faults) as server,
        HealthWatch(server) as watch,
        operator_of(server) as operator,
        SteadyCallers(server.address, messages) as client,
        ExitStack() as held,
    ):
        for version in (2, 1):
            assert operator.load(version).changed
        held.enter_context(faults.warm_up_closed())
        live.publish(2)
        server.wait_until(lambda: operator.status().load.loading_version == 2, "it loads")
        waiting = operator.stub.Load.future(LoadRequest(snapshot_version=1), timeout=60)
        done = len(client.seen)
        server.wait_until(lambda: len(client.seen) > done + 10, "it serves meanwhile")
        server.terminate()
        assert watch.not_serving.wait(PATIENCE_SECONDS)
        client.stop()
        late = Caller(server.address)
        client.seen.insert(0, late.call(messages[0]))
        late.close()
        with refused() as found:
            waiting.result()
        assert found[0].reason == "draining"
        with refused() as found:
            operator.load(1)
        assert found[0].reason == "draining"
        assert server.wait() == 0
    assert watch.seen[:2] == ["SERVING", "NOT_SERVING"]
    assert_none_lost(client.seen, expected, server)
    assert len(server.log("swapped")) == 2
    assert not server.log("load_failed")
