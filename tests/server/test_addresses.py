"""Addresses that the processes of one server share, and no other process gets."""

import socket
from contextlib import ExitStack, closing

import pytest

from grace.configs.errors import ConfigError
from grace.server.transport.addresses import held_port, is_loopback

HOST = "127.0.0.1"


def shared(port: int, *, listens: bool) -> socket.socket:
    """Bind a port as gRPC does if it shares it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((HOST, port))
    if listens:
        made.listen()
    return made


def assert_refused(port: int) -> None:
    with (
        pytest.raises(ConfigError, match=f"listen: {HOST}:{port}: address already in use"),
        held_port("listen", HOST, port),
    ):
        pass


def test_a_held_port_was_free_and_only_relays_share_it() -> None:
    with held_port("listen", HOST, 0) as port, ExitStack() as stack:
        assert_refused(port)
        relays = [stack.enter_context(shared(port, listens=True)) for _ in range(2)]
        assert_refused(port)
        with held_port("listen", HOST, 0) as other:
            assert other != port
        for _ in range(63):
            stack.enter_context(closing(socket.create_connection((HOST, port), timeout=5)))
        for relay in relays:  # the holder, which would never answer, is given none
            relay.setblocking(False)
            relay.accept()[0].close()
    with held_port("listen", HOST, port):
        pass


def test_a_listener_keeps_its_port_after_it_was_held() -> None:
    with held_port("listen", HOST, 0) as port:
        relay = shared(port, listens=True)
    with relay:
        assert_refused(port)
    with held_port("listen", HOST, port) as again:
        assert again == port


def test_a_port_is_free_though_connections_of_its_last_server_linger() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            listener.accept()[0].close()  # the one that closes first lingers
            assert client.recv(1) == b""
    with held_port("listen", HOST, port) as again:
        assert again == port


def test_a_name_that_has_an_address_twice_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (HOST, 0))] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: twice)  # as /etc/hosts may say
    with held_port("listen", "twice", 0) as port, pytest.raises(OSError, match="in use"):
        socket.create_server((HOST, port))


@pytest.mark.parametrize("port_of", [0, 1])
def test_all_addresses_of_a_name_have_one_port(port_of: int) -> None:
    with held_port("listen", "localhost", 0) as free:
        pass
    with held_port("listen", "localhost", free * port_of) as port:
        assert port == free or not port_of
        for host in {place[4][0] for place in socket.getaddrinfo("localhost", port)}:
            with pytest.raises(OSError, match="in use"):
                socket.create_server((host, port))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("fe80::1%lo", False)),
    ],
)
def test_an_address_is_on_loopback_if_only_this_machine_can_reach_it(
    host: str, loopback: bool
) -> None:
    assert is_loopback("admin", host, 50052) == loopback


def test_an_empty_host_is_no_address_on_loopback_or_elsewhere() -> None:
    with pytest.raises(ConfigError, match="admin: :50052: name or service not known; choose"):
        is_loopback("admin", "", 50052)
