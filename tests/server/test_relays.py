"""Servers whose gRPC is in relays: what only they have, processes that end and connections that
are spread. Much of what all servers do is tested with relays where it is tested without.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import pytest

from grace.configs.errors import ConfigError
from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse
from grace.server.messages import Answer
from grace.server.transport.relay_process import LATE_SECONDS
from support.command import plain_environment
from support.faults import Faults
from support.health import HealthWatch, status
from support.occupied import occupied_engine
from support.retrieve_calls import Caller, counted_calls, message
from support.served import Service, served
from support.server_process import PATIENCE_SECONDS, ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

RELAYS = 2
ESTABLISHED = "01"

FIRST_IS_KILLED = """
import sys
from pathlib import Path
from grace.configs.serving import load_serving_config
from grace.server.transport import relay_process
from grace.server.life_cycle import serve

started, _start = [], relay_process._start

def start(end):
    process = _start(end)
    if not started:
        process.kill()
        process.wait()
    started.append(process)
    return process

relay_process._start = start
sys.exit(serve(load_serving_config(Path(sys.argv[1]))))
"""


def relays_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [
        child for child, command in commands.items() if b"grace.server.transport.relay" in command
    ]


def runs(pid: int) -> bool:
    """Whether the process does anything yet; a dead one may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def connections(pid: int, address: str) -> int:
    """How many of the address's connections the process holds."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(port) and row[3] == ESTABLISHED}
    files = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
    return sum(file.removeprefix("socket:[").rstrip("]") in inodes for file in files)


@contextmanager
def callers(address: str, count: int) -> Iterator[list[Caller]]:
    made = [Caller(address) for _ in range(count)]
    try:
        yield made
    finally:
        for caller in made:
            caller.close()


def test_all_relays_of_a_server_serve_on_its_one_port(
    relayed_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server = relayed_server
    relays = relays_of(server.pid)
    assert len(relays) == RELAYS
    before = server.metric("grace_requests_total", code="OK")
    with callers(server.address, 31) as clients:
        for client in clients:
            assert client.call(message(serving_files.requests[0])).ok
        held = [connections(relay, server.address) for relay in relays]
        assert sum(held) >= 31
        assert all(held), "the kernel gives each of them some"
        assert connections(server.pid, server.address) == 0
    server.wait_until(
        lambda: server.metric("grace_requests_total", code="OK") == before + 31, "31 are counted"
    )


def test_log_and_status_tell_how_many_relays_there_are(
    healthy_server: ServerProcess, relayed_server: ServerProcess
) -> None:
    for server, relays in ((healthy_server, 0), (relayed_server, RELAYS)):
        assert [line["front_ends"] for line in server.log("listening")] == [relays]
        assert status(server).front_ends == relays


def test_a_relay_holds_none_of_what_the_server_computes_with(relayed_server: ServerProcess) -> None:
    for relay in relays_of(relayed_server.pid):
        mapped = Path(f"/proc/{relay}/maps").read_text()
        assert "cygrpc" in mapped
        for library in ("torch", "numpy", "libgrace"):
            assert library not in mapped


def test_a_server_whose_relay_dies_ends_and_says_so_and_no_call_is_lost_uncounted(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config("relay_death.yaml", listen={"front_ends": RELAYS})
    with (
        ServerProcess(config, faults=faults) as server,
        callers(server.address, 23) as clients,
        HealthWatch(server) as watch,
    ):
        victim, other = relays_of(server.pid)
        with faults.closed("generate"):
            calls = [client.start(request) for client in clients]
            server.wait_until(
                lambda: server.metric("grace_inflight_requests") == len(calls), "all are in flight"
            )
            held = connections(victim, server.address)
            os.kill(victim, signal.SIGKILL)
            (told,) = server.wait_log("front_end_died")
            wait_until(lambda: sum(call.done for call in calls) >= told["calls"], "they fail")
        outcomes = Counter(call.outcome().code for call in calls)
        assert server.wait() == 1
        assert watch.not_serving.wait(PATIENCE_SECONDS)
    assert not runs(other)
    assert (told["pid"], told["end"]) == (victim, "SIGKILL")
    assert 0 < told["calls"] <= held
    # The others' calls are under way, and have FAIL_SECONDS to be answered.
    assert outcomes == {
        grpc.StatusCode.UNAVAILABLE: told["calls"],
        grpc.StatusCode.OK: len(calls) - told["calls"],
    }
    counted = Counter(entry["code"] for entry in server.log("request"))
    assert counted == {"CANCELLED": told["calls"], "OK": len(calls) - told["calls"]}
    assert server.log("stopped")[-1]["exit_code"] == 1


def test_a_relay_that_dies_while_the_server_loads_ends_it(
    serving_files: ServingFiles, faults: Faults
) -> None:
    config = serving_files.write_config("early_death.yaml", listen={"front_ends": RELAYS})
    with faults.closed("input"), ServerProcess(config, faults=faults, ready=False) as server:
        server.wait_until(lambda: bool(faults.batches("input")), "it warms up")
        relays = relays_of(server.pid)
        os.kill(relays[1], signal.SIGSEGV)
        assert server.wait() == 1
    assert server.log("front_end_died")[0]["end"] == "SIGSEGV"
    assert not server.log("ready")
    assert not any(map(runs, relays))


def test_no_relay_survives_its_server_however_that_ends(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config("killed.yaml", listen={"front_ends": RELAYS})
    with ServerProcess(config, faults=faults) as server:
        caller, relays = Caller(server.address), relays_of(server.pid)
        with occupied_engine(server, caller, request) as calls:
            os.kill(relays[0], signal.SIGSTOP)  # it cannot see that the link has ended
            server.signal(signal.SIGKILL)
            wait_until(lambda: not any(map(runs, relays)), "the relays have gone", 5.0)
        assert {call.outcome().code for call in calls} == {grpc.StatusCode.UNAVAILABLE}
        caller.close()


def test_signals_to_all_processes_at_once_are_the_server_s_to_heed(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config("group.yaml", listen={"front_ends": RELAYS})
    with ServerProcess(config, faults=faults) as server:
        relays = relays_of(server.pid)
        with counted_calls(server) as caller:
            for number in (signal.SIGINT, signal.SIGTERM):
                for relay in relays:
                    os.kill(relay, number)
            assert caller.call(message(request)).ok
        caller = Caller(server.address)
        with occupied_engine(server, caller, request) as calls:
            for pid in (*relays, server.pid):
                os.kill(pid, signal.SIGTERM)
            server.wait_log("draining")
        assert [call.outcome().code for call in calls] == [grpc.StatusCode.OK] * 2
        caller.close()
        assert server.wait() == 0
    assert not any(map(runs, relays))
    assert not server.log("front_end_died")


def test_a_relay_that_hangs_holds_no_end_up_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def use(service: Service, _: object) -> None:
        relay, _ = relays_of(os.getpid())
        os.kill(relay, signal.SIGSTOP)
        began = time.monotonic()
        await service.listeners.close()
        assert time.monotonic() - began < LATE_SECONDS
        assert service.died.is_set(), "calls of it may have been cut"
        assert not runs(relay)

    with patch("grace.server.transport.relay_process.LATE_SECONDS", 0.3):
        served(use, front_ends=RELAYS)
    (told,) = [vars(entry)["end"] for entry in caplog.records if entry.message == "front_end_died"]
    assert told == "SIGKILL of the server's own: it did not end in time"


def test_calls_around_the_bound_get_their_own_reply_or_are_refused() -> None:
    bound, seconds = 4, 2.0
    refused, replies = Counter[str](), Counter[bool]()

    async def answer(service: Service) -> None:
        while True:
            await asyncio.sleep(0.001)
            taken, service.pipeline.taken = service.pipeline.taken, []
            ids = [request.retrieval.request_id for request in taken]
            encoded = [RetrieveResponse(request_id=each).SerializeToString() for each in ids]
            service.front_end.ended(list(map(Answer, taken, encoded)))

    async def call(retrieve: Any, caller: int) -> None:
        end = time.monotonic() + seconds
        for number in count():
            if time.monotonic() > end:
                return
            request_id = f"{caller}-{number}"
            try:
                reply = await retrieve(RetrieveRequest(request_id=request_id).SerializeToString())
            except grpc.aio.AioRpcError as error:
                refused[dict(error.trailing_metadata())["grace-reason"]] += 1
            else:
                replies[RetrieveResponse.FromString(reply).request_id == request_id] += 1

    async def use(service: Service, retrieve: Any) -> None:
        service.pipeline.answers = False
        answers = asyncio.ensure_future(answer(service))
        await asyncio.gather(*(call(retrieve, caller) for caller in range(3 * bound)))
        answers.cancel()
        ok = service.count("grace_requests_total", code="OK")
        failed = service.count("grace_request_failures_total", reason="too_many_calls")
        assert (ok, failed) == (replies[True], refused["too_many_calls"])

    served(use, LimitsConfig(open_calls=bound), front_ends=1)
    assert set(replies) == {True}
    assert set(refused) == {"too_many_calls"}


def test_relays_are_refused_where_they_could_not_work() -> None:
    async def use(service: Service, _: object) -> None:  # noqa: ARG001
        raise AssertionError("it serves")

    with (
        patch("sys.platform", "darwin"),
        pytest.raises(ConfigError, match=r"listen.front_ends: .* on Linux only; set it to 0"),
    ):
        served(use, front_ends=RELAYS)


def test_a_relay_killed_before_it_has_begun_ends_the_start_in_one_line(
    serving_files: ServingFiles,
) -> None:
    config = serving_files.write_config("unborn.yaml", listen={"front_ends": RELAYS})
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IS_KILLED, str(config)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 2
    died, told = done.stderr.splitlines()
    assert json.loads(died)["event"] == "front_end_died"
    assert told == "error: listen.front_ends: process 1 of 2 ended with SIGKILL"


def test_relays_that_do_not_come_up_are_told_with_what_became_of_them() -> None:
    async def use(service: Service, _: object) -> None:  # noqa: ARG001
        raise AssertionError("it serves")

    with (
        patch("sys.executable", "/bin/false"),
        pytest.raises(ConfigError, match=r"front_ends: process [12] of 2 ended with exit code 1"),
    ):
        served(use, front_ends=RELAYS)
