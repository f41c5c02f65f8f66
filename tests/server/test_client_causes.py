"""The cause that a client names for a server that it reaches and that takes no call.

Each server listens at every address of `localhost`, because gRPC may report the fault of any.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from grace.client import AdminClient, Client
from grace.client.connection import PLAINTEXT, connection_fault
from grace.configs.errors import CallError
from grace.server.observe.metrics_page import MetricsPage
from grace.server.server_state import ServerState
from support.served import Service, served

PATIENCE_SECONDS = 20.0
pytestmark = pytest.mark.subprocess


@pytest.fixture
def closing() -> Iterator[int]:
    """The port of a server that closes every connection, as one that speaks only TLS does."""
    if socket.has_dualstack_ipv6():
        listening = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listening = socket.create_server(("127.0.0.1", 0))

    def close_each() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the test has ended
                return
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE_SECONDS)
                connection.recv(1)

    thread = threading.Thread(target=close_each)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def fault_of(address: str) -> str:
    with Client(address, retry=None) as client, pytest.raises(CallError) as refused:
        client.retrieve(user={}, timeout=PATIENCE_SECONDS)
    return str(refused.value)


def test_a_server_that_starts_or_drains_is_not_reported_as_missing() -> None:
    async def ask(service: Service, _: Any) -> None:
        host, _, _ = service.address.rpartition(":")
        assert host == "localhost"  # gRPC watches health only for a name
        fault = await asyncio.to_thread(fault_of, service.address)
        assert f"the server at {service.address} is starting, or drains; see its log" in fault

    served(ask, host="localhost")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_that_closes_connections_may_speak_only_tls(closing: int, host: str) -> None:
    address = f"{host}:{closing}"
    fault = fault_of(address)
    assert f"the server at {address} closed the connection: it may speak only TLS" in fault


def test_the_metrics_port_is_not_reported_as_missing() -> None:
    page = MetricsPage("127.0.0.1", 0, CollectorRegistry(), ServerState())
    address = f"127.0.0.1:{page.port}"
    with AdminClient(address) as client, pytest.raises(CallError) as refused:
        client.status(PATIENCE_SECONDS)
    for fault in (fault_of(address), str(refused.value)):
        assert f"what answers at {address} is no gRPC server; it may be the metrics port" in fault
        assert "section listen" in fault
        assert "admin" in fault
    page.close()


def test_a_name_without_any_server_says_how_to_start_one() -> None:
    assert "no server at localhost:1; start it (grace serve)" in fault_of("localhost:1")


def test_a_proxy_without_healthy_servers_is_named() -> None:
    fault = connection_fault("lb:1", "no healthy upstream", PLAINTEXT)
    assert fault == "the proxy at lb:1 has no healthy server behind it; see the servers' logs"
