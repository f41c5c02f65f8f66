"""Servers whose gRPC runs in relays, processes of their own. The tests marked `front_ends`
elsewhere show that clients see no difference; these show what only such servers have.
"""

import asyncio
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import pytest

from grace.configs.errors import ConfigError
from grace.configs.serving import LimitsConfig, ServingConfig
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse
from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.relays.relays import Relays
from support.faults import Faults
from support.health import HealthWatch, status
from support.occupied import occupied_engine
from support.pipeline_cases import GENERATION
from support.retrieve_calls import Caller, message
from support.served import METHOD, Service, serving, until
from support.server_process import PATIENCE_SECONDS, ServerProcess, children_of, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

RELAYS = 2
ESTABLISHED = "01"
LIMITS = ListenLimits.of(ServingConfig(Path(), Path(), GENERATION))

# Programs of relays that do not come up.
IMPORTS = "import sys; from grace.server.transport.relays import relay; "
MAIN = "sys.exit(relay.main(sys.argv[1]))"
RAISES = """
async def fail(*_): raise {fault}
relay.GrpcListener.open = fail
"""
TAKEN = IMPORTS + RAISES.format(fault='relay.ConfigError("listen: the port is taken")') + MAIN
FAULTY = IMPORTS + RAISES.format(fault='KeyError("marker-4711")') + MAIN


def relays_of(pid: int) -> list[int]:
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children_of(pid)}
    return [
        child
        for child, command in commands.items()
        if b"grace.server.transport.relays.relay" in command
    ]


def runs(pid: int) -> bool:
    """Whether the process still runs; a dead one may wait for its parent to notice."""
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
    with ExitStack() as stack:
        yield [stack.enter_context(Caller(address)) for _ in range(count)]


def request_of(request_id: str) -> bytes:
    return RetrieveRequest(request_id=request_id).SerializeToString()


def ends(service: Service) -> tuple[float, float]:
    """Calls that are counted as OK, and as failed."""
    ok = service.count("grace_requests_total", code="OK")
    reasons = ("cancelled", "deadline_exceeded", "too_many_calls")
    failed = (service.count("grace_request_failures_total", reason=each) for each in reasons)
    return ok, sum(failed)


def with_relays(use: Callable[[Relays, Service], Awaitable[None]], **settings: Any) -> None:
    """Call `use` with relays that are not started, of a service without listeners."""

    async def run() -> None:
        service = Service(LimitsConfig())
        relays = Relays(RELAYS, service.front_end, LIMITS, service.died.set, **settings)
        try:
            await use(relays, service)
        finally:
            await relays.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def fault_of(program: str, **settings: Any) -> str:
    """Return the fault of the start of relays that run this program."""

    async def use(relays: Relays, _: Service) -> None:
        await relays.open("listen", "127.0.0.1", 0)

    with pytest.raises(ConfigError) as caught:
        with_relays(use, program=("-c", program), **settings)
    return str(caught.value)


def deaths(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.message == "front_end_died"]


def test_all_relays_of_a_server_serve_on_its_one_port_and_hold_grpc_alone(
    healthy_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server = healthy_server
    relays = relays_of(server.pid)
    assert len(relays) == RELAYS
    assert [line["front_ends"] for line in server.log("listening")] == [RELAYS]
    assert status(server).front_ends == RELAYS
    with callers(server.address, 31) as clients:
        for client in clients:
            assert client.call(message(serving_files.requests[0])).ok
        held = [connections(relay, server.address) for relay in relays]
        assert sum(held) >= 31
        assert all(held), "the kernel gives each of them some"
        assert connections(server.pid, server.address) == 0
    for relay in relays:
        mapped = Path(f"/proc/{relay}/maps").read_text()
        assert "cygrpc" in mapped
        for library in ("torch", "numpy", "libgrace"):
            assert library not in mapped


def test_a_server_whose_relay_dies_ends_and_reports_it_and_counts_every_call(
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
            (death,) = server.wait_log("front_end_died")
            wait_until(lambda: sum(call.done for call in calls) >= death["calls"], "they fail")
        outcomes = Counter(call.outcome().code for call in calls)
        assert server.wait() == 1
        assert watch.not_serving.wait(PATIENCE_SECONDS)
    assert not runs(other)
    assert (death["pid"], death["end"]) == (victim, "SIGKILL")
    assert 0 < death["calls"] <= held
    # The others' calls are under way, and have FAIL_SECONDS to be answered.
    assert outcomes == {
        grpc.StatusCode.UNAVAILABLE: death["calls"],
        grpc.StatusCode.OK: len(calls) - death["calls"],
    }
    counted = Counter(entry["code"] for entry in server.log("request"))
    assert counted == {"CANCELLED": death["calls"], "OK": len(calls) - death["calls"]}
    assert server.log("stopped")[-1]["exit_code"] == 1


def test_no_relay_survives_its_server_however_that_ends(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config("killed.yaml", listen={"front_ends": RELAYS})
    with ServerProcess(config, faults=faults) as server, Caller(server.address) as caller:
        relays = relays_of(server.pid)
        with occupied_engine(server, caller, request) as calls:
            os.kill(relays[0], signal.SIGSTOP)  # it cannot see that the link has ended
            server.signal(signal.SIGKILL)
            wait_until(lambda: not any(map(runs, relays)), "the relays have gone")
        assert {call.outcome().code for call in calls} == {grpc.StatusCode.UNAVAILABLE}


def test_relays_ignore_the_signals_that_stop_a_server_even_before_they_have_begun() -> None:
    async def use(relays: Relays, service: Service) -> None:
        def signal_all() -> None:
            for relay in relays_of(os.getpid()):
                os.kill(relay, signal.SIGTERM)
                os.kill(relay, signal.SIGINT)

        opening = asyncio.create_task(relays.open("listen", "127.0.0.1", 0))
        while not opening.done():
            signal_all()
            await asyncio.sleep(0.001)
        signal_all()
        async with grpc.aio.insecure_channel(await opening) as channel:
            retrieve: Any = channel.unary_unary(METHOD)
            assert await retrieve(b"")
        await relays.close()
        assert not service.died.is_set()

    with_relays(use)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"beat_seconds": 0.1}, "it did not answer for 1.5 s"),
        ({"late_seconds": 0.3}, "it did not end in time"),
    ],
    ids=["while the server serves", "when it ends"],
)
def test_a_relay_that_hangs_is_found_and_killed(
    settings: dict[str, float], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(relays: Relays, service: Service) -> None:
        await relays.open("listen", "127.0.0.1", 0)
        await asyncio.sleep(0.2)
        assert not service.died.is_set(), "a relay that runs answers"
        hanging, _ = relays_of(os.getpid())
        os.kill(hanging, signal.SIGSTOP)
        if "late_seconds" in settings:
            await relays.close()
        await service.died.wait()  # calls of it may have been cut
        assert not runs(hanging)

    with_relays(use, **settings)
    (death,) = deaths(caplog)
    assert death["end"] == f"SIGKILL from the server: {fault}"


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("raise SystemExit(3)", "listen.front_ends: process 1 of 2 ended with exit code 3"),
        ("import os; os.abort()", "listen.front_ends: process 1 of 2 ended with SIGABRT"),
        ("import time; time.sleep(600)", "listen.front_ends: 2 processes were not up after 0.5 s"),
        (TAKEN, "listen: the port is taken"),
    ],
    ids=["it exits", "it is killed", "it hangs", "taken port"],
)
def test_relays_that_do_not_come_up_are_a_fault_of_the_start(program: str, fault: str) -> None:
    hangs = {"start_seconds": 0.5, "late_seconds": 0.1} if "sleep" in program else {}
    assert fault_of(program, **hangs).startswith(fault)


def test_a_fault_in_a_relay_is_a_line_of_the_server_s_log_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = "listen.front_ends: process [12] of 2 ended with exit code 1"
    assert re.fullmatch(ended, fault_of(FAULTY))
    line = next(vars(each) for each in caplog.records if each.message == "front_end_failed")
    assert (line["error"], line["levelno"]) == ("KeyError", logging.ERROR)
    assert line["front_end"] in ("1 of 2", "2 of 2")
    assert not any("4711" in str(vars(record)) for record in caplog.records)


@serving(front_ends=1)
async def test_a_call_that_is_given_up_at_any_moment_is_withdrawn_and_counted_once(
    service: Service,
) -> None:
    service.pipeline.answers = False
    given_up = service.retrieve(b"", timeout=1.0)
    await until(lambda: len(service.pipeline.taken) == 1)
    deadline = service.pipeline.taken[0].deadline
    assert deadline < perf_counter() + 1.5
    assert await given_up.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(service.pipeline.cancelled) == 1)
    service.pipeline.answer()  # to no one
    for turn in range(1, 64):
        call = service.retrieve(b"")
        await until(lambda: bool(service.pipeline.taken))
        call.cancel()
        await asyncio.sleep(0.0001 * (turn % 7))  # the answer and the end may cross
        service.pipeline.answer()
        await until(lambda: not service.state.open_calls)
    assert sum(ends(service)) == 64
    service.pipeline.answers = True
    assert RetrieveResponse.FromString(await service.retrieve(request_of("r7"))).request_id == "r7"
