"""SIGTERM while a server loads or swaps: it drains, abandons the load and exits with 0."""

import threading
from collections.abc import Mapping
from itertools import cycle

import grpc
import pytest

from grace.proto.retrieval_pb2 import LoadRequest, RetrieveResponse
from support.faults import Faults
from support.health import HealthWatch
from support.live_snapshots import LiveRoot, assert_plain
from support.operators import operator_of, refused
from support.retrieve_calls import Caller, Outcome, logged_ends, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def call_until(stop: threading.Event, address: str, live: LiveRoot, seen: list[Outcome]) -> None:
    """Call until the server reports a drain: by its health or, to a slow client, in a reply."""
    caller = Caller(address)
    for request in cycle(live.requests):
        if stop.is_set() or (seen and not seen[-1].ok):
            break
        seen.append(caller.call(message(request)))
    caller.close()


def assert_none_lost(
    seen: list[Outcome],
    expected: Mapping[tuple[str, int], RetrieveResponse],
    server: ServerProcess,
) -> None:
    """Only a client that learns of the drain too late may get a refusal, and may then retry."""
    if not seen[-1].ok:
        assert seen.pop().code is grpc.StatusCode.UNAVAILABLE
    for outcome in seen:
        assert_plain(outcome.response, expected)
    ends = logged_ends(server)
    del ends["draining"]
    assert ends == {"OK": len(seen)}


def test_sigterm_abandons_a_load_and_loses_no_request(
    serving_files: ServingFiles, faults: Faults
) -> None:
    live = LiveRoot.write(faults.folder, serving_files)
    expected, seen = live.expected(1), list[Outcome]()
    config = live.write_config("abandoned.yaml", listen={"linger_seconds": 2.0})
    with (
        ServerProcess(config, faults=faults) as server,
        HealthWatch(server) as watch,
        operator_of(server) as operator,
        faults.warm_up_closed(),
    ):
        client = threading.Thread(
            target=call_until, args=(watch.not_serving, server.address, live, seen)
        )
        client.start()
        live.publish(2)
        server.wait_until(lambda: operator.status().load.loading_version == 2, "it loads")
        waiting = operator.stub.Load.future(LoadRequest(snapshot_version=1), timeout=60)
        done = len(seen)
        server.wait_until(lambda: len(seen) > done + 10, "it serves meanwhile")
        server.terminate()
        client.join()
        with refused() as found:
            waiting.result()
        assert found[0].reason == "draining"
        with refused() as found:
            operator.load(1)
        assert found[0].reason == "draining"
        assert server.wait() == 0
    assert_none_lost(seen, expected, server)
    assert not server.log("swapped")
    assert not server.log("load_failed")


def test_sigterm_between_swaps_loses_no_request(
    serving_files: ServingFiles, faults: Faults
) -> None:
    live = LiveRoot.write(faults.folder, serving_files)
    expected, seen = live.expected(1, 2), list[Outcome]()
    config = live.write_config("swapping.yaml", listen={"linger_seconds": 2.0, "front_ends": 1})
    with ServerProcess(config) as server, HealthWatch(server) as watch:
        client = threading.Thread(
            target=call_until, args=(watch.not_serving, server.address, live, seen)
        )
        client.start()
        swaps = 0
        with operator_of(server) as operator:
            for turn in range(5):
                swaps += operator.load(2 - turn % 2).changed
            under_way = operator.stub.Load.future(LoadRequest(snapshot_version=1), timeout=60)
            server.terminate()
            client.join()
            under_way.exception()
        assert server.wait() == 0
    assert swaps == 5
    assert_none_lost(seen, expected, server)
    assert len(server.log("swapped")) >= swaps
