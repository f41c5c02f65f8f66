"""The Python clients: servers, replies and errors; and the client of gRPC with our settings."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from grace.client import AdminClient, AsyncClient, Client, InputError, Tls
from grace.client.connection import connection_fault
from grace.client.retry import SERVICE_CONFIG
from grace.configs.errors import CallError
from support.retrieve_calls import Caller, Counters, message
from support.served import Service, served
from support.server_process import PATIENCE_SECONDS, ServerProcess
from support.serving_files import ServingFiles

NO_ADDRESSES = (
    *("", "foo", "50051", ":50051", "127.0.0.1:", "127.0.0.1:http", "http://127.0.0.1:50051"),
    *("unix:grace.sock", "::1:50051", "[127.0.0.1]:50051", "[::1]50051", "a b:50051"),
    *("127.0.0.1:50051/", "127.0.0.1:٣", "127.0.0.1:50051\n"),
)


@pytest.mark.parametrize(
    ("addresses", "fault"),
    [
        *((each, f"address {each!r}: expected HOST:PORT") for each in NO_ADDRESSES),
        *((f"127.0.0.1:{port}", "the port must be 1 to 65535") for port in (0, 65536, 99999)),
        ([], "addresses: an empty list; give at least one HOST:PORT"),
        (["a:1", "b:1"], "addresses a:1, b:1: a list must have IP addresses of one kind"),
        (["10.0.0.1:1", "[::1]:1"], "addresses 10.0.0.1:1, [::1]:1: a list must have IP addr"),
        (["10.0.0.1:1", "10.0.0.2"], "address '10.0.0.2': expected HOST:PORT, such as 127"),
    ],
)
def test_addresses_that_cannot_be_called_are_refused(
    addresses: str | list[str], fault: str
) -> None:
    with pytest.raises(InputError) as refused:
        Client(addresses)
    assert fault in str(refused.value)


@pytest.mark.subprocess
def test_the_asyncio_client_waits_for_a_server_and_ends_with_its_calls(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    async def use() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            assert not await client.is_ready()
            with pytest.raises(CallError, match=r"was ready within 0\.2 s; see its log, or start"):
                await client.wait_ready(0.2)
        client = AsyncClient(faulty_server.address)
        await client.wait_ready(60.0)
        assert await client.is_ready()
        with faulty_server.faults.closed("generate"):
            call = asyncio.create_task(client.retrieve(serving_files.requests[0], timeout=60.0))
            while faulty_server.metric("grace_inflight_requests") < 1:
                await asyncio.sleep(0.001)
            await client.close()
            with pytest.raises(CallError, match="CANCELLED"):
                await call
        with pytest.raises(CallError, match="this client is closed; create another one"):
            await client.retrieve(timeout=60.0)
        faulty_server.wait_until(
            lambda: faulty_server.metric("grace_inflight_requests") == 0, "the server is idle"
        )

    asyncio.run(use())


TIMEOUT = PATIENCE_SECONDS
CONFIG = SERVICE_CONFIG.read_text(encoding="utf-8")


def test_over_tls_several_servers_have_one_name() -> None:
    with pytest.raises(InputError, match="TLS needs one name; give the servers a name in DNS"):
        Client(["10.0.0.1:1", "10.0.0.2:1"], tls=Tls())


def answered(server: ServerProcess) -> float:
    return Counters.of(server).ok


@pytest.mark.subprocess
def test_servers_are_called_in_turn_and_one_that_drains_or_dies_loses_no_call(
    serving_files: ServingFiles,
) -> None:
    request, stop, drained = serving_files.requests[0], threading.Event(), threading.Event()
    done: list[int] = []

    def keep_calling(client: Client) -> None:
        while not stop.is_set():
            done.append(client.retrieve(request, timeout=TIMEOUT).attempts)

    def keep_calling_with_grpc(addresses: list[str]) -> None:
        """Call with gRPC's own client until the first server has drained."""
        with Caller(f"ipv4:{','.join(addresses)}", config=CONFIG) as caller:
            while not drained.is_set():
                assert caller.call(message(request), TIMEOUT).ok

    def more_calls(server: ServerProcess, number: int) -> None:
        made = len(done)
        server.wait_until(lambda: len(done) >= made + number, "calls go on")

    config = serving_files.write_config("one_of_two.yaml", listen={"linger_seconds": 1.0})
    with ServerProcess(config) as first, ServerProcess(config) as second:
        addresses = [first.address, second.address]
        with Client(addresses) as client, ThreadPoolExecutor(4) as threads:
            assert client.address == ", ".join(addresses)
            client.wait_ready(TIMEOUT)
            calls = [threads.submit(keep_calling, client) for _ in range(3)]
            calls.append(threads.submit(keep_calling_with_grpc, addresses))
            try:
                first.wait_until(lambda: min(answered(first), answered(second)) > 20, "both answer")
                first.terminate()
                assert first.wait() == 0
                more_calls(second, 20)
                drained.set()
                calls.pop().result()
                port = int(first.address.rpartition(":")[2])
                back = serving_files.write_config("back.yaml", listen={"port": port})
                with ServerProcess(back) as third:
                    third.wait_until(lambda: answered(third) > 5, "it is called again")
                    second.kill()
                    more_calls(third, 20)
                    stop.set()
                    for call in calls:
                        call.result()
            finally:
                stop.set()
                drained.set()


def retrieved(address: str) -> None:
    with Client(address, retry=False) as client:
        client.retrieve(user={}, timeout=TIMEOUT)


def fault_of(address: str) -> str:
    with pytest.raises(CallError) as refused:
        retrieved(address)
    return str(refused.value)


NO_GRPC = ("is not a gRPC server; it may be the metrics port", "section listen", "admin")


def asked_of_admin(address: str) -> None:
    with AdminClient(address) as client:
        client.status(TIMEOUT)


def waited_for(address: str) -> None:
    with Client(address) as client:
        client.wait_ready(5.0)


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("ask", "place", "pieces"),
    [
        (retrieved, "admin", ("it may be the Admin address",)),
        (waited_for, "admin", ("it may be the Admin address",)),
        (retrieved, "metrics_address", NO_GRPC),
        (waited_for, "metrics_address", NO_GRPC),
        (asked_of_admin, "address", ("does not serve Admin; it may be the address for clients",)),
        (asked_of_admin, "metrics_address", NO_GRPC),
    ],
)
def test_another_address_of_the_server_is_reported_as_what_it_may_be(
    healthy_server: ServerProcess, ask: Callable[[str], object], place: str, pieces: tuple[str, ...]
) -> None:
    with pytest.raises(CallError) as refused:
        ask(getattr(healthy_server, place))
    assert refused.value.exit_code == 1
    assert all(piece in str(refused.value) for piece in pieces)
    assert "ready within" not in str(refused.value), "waiting would not help"


def test_a_server_that_starts_or_drains_is_not_reported_as_missing() -> None:
    async def ask(service: Service, _: Any) -> None:
        host, _, _ = service.address.rpartition(":")
        assert host == "localhost"  # gRPC watches health only for a name
        fault = await asyncio.to_thread(fault_of, service.address)
        assert f"the server at {service.address} is starting, or drains; see its log" in fault

    served(ask, host="localhost")


def test_a_proxy_without_healthy_servers_is_named() -> None:
    fault = connection_fault("lb:1", "no healthy upstream", None)
    assert fault == "the proxy at lb:1 has no healthy server behind it; see the servers' logs"
