"""The addresses and frames that gRPC's listeners and relays use.

The processes of one server share its addresses, which no other process gets. Frames between a
server and its relays arrive whole and in order, however their bytes are cut.
"""

import asyncio
import os
import socket
from contextlib import ExitStack, closing

import pytest
import uvloop

from grace.configs.errors import ConfigError
from grace.server.transport.addresses import held_port, is_loopback
from grace.server.transport.listener.grpc_listener import IncomingCall
from grace.server.transport.relays.frames import Kind, Link, packed, unpacked

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


def test_a_name_is_on_loopback_only_if_all_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, 0)) for h in (HOST, "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    assert not is_loopback("admin", "both", 50052)


def test_an_empty_host_is_no_address_on_loopback_or_elsewhere() -> None:
    with pytest.raises(ConfigError, match="admin: :50052: name or service not known; choose"):
        is_loopback("admin", "", 50052)


Frame = tuple[int, int, bytes]

SMALL: list[Frame] = [
    (Kind.CALL, 1, b"x" * 63),
    (Kind.ENDED, 1, b""),
    (Kind.CALL, 2**64 - 1, b"\x00"),
    (Kind.LOG, 0, b"a line"),
]


async def received(link: Link) -> list[Frame]:
    frames: list[Frame] = []
    await link.serve(lambda *frame: frames.append(frame))
    return frames


async def written(frames: list[Frame]) -> bytes:
    """The bytes of these frames on the wire."""
    near, far = socket.socketpair()
    link = await Link.connected(near)
    for kind, number, body in frames:
        link.send(Kind(kind), number, body[:5], body[5:])
    await link.close()
    with far:
        return b"".join(iter(lambda: far.recv(1 << 16), b""))


def test_a_relayed_call_is_whole() -> None:
    sent = IncomingCall(1.5, 2.5, "ipv6:[::1]:443", b"x" * 4000)
    assert unpacked(b"".join(packed(sent))) == sent


def test_frames_are_the_same_wherever_their_bytes_are_cut() -> None:
    async def cut_everywhere() -> None:
        data = await written(SMALL)
        for cut in range(len(data) + 1):
            near, far = socket.socketpair()
            link = await Link.connected(near)
            reading = asyncio.create_task(received(link))
            for piece in (data[:cut], data[cut:]):
                far.sendall(piece)
                await asyncio.sleep(0.001)  # it reads what there is
            far.close()
            assert await reading == SMALL

    asyncio.run(cut_everywhere())


def test_more_than_the_sockets_hold_arrives_in_order_before_an_end_closes() -> None:
    frames = [(Kind.REPLY, size, os.urandom(size)) for size in (0, 80_001, 9 << 20, 5) * 7]

    async def exchange() -> None:
        sender, receiver = [await Link.connected(end) for end in socket.socketpair()]
        reading = asyncio.create_task(received(receiver))
        for kind, number, body in frames:
            sender.send(kind, number, body)
        await sender.close()
        assert await reading == frames
        for link in (sender, receiver):
            link.send(Kind.DONE, 2)  # to no one, and no fault

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(exchange())


def test_an_end_that_fails_at_a_frame_says_so_and_can_still_send_why() -> None:
    async def fail() -> None:
        near, far = [await Link.connected(end) for end in socket.socketpair()]
        near.send(Kind.ORDER, 1, b"?")
        with pytest.raises(ZeroDivisionError):
            await far.serve(lambda *_: 1 // 0)
        far.send(Kind.LOG, 0, b"why")
        assert (await asyncio.gather(received(near), far.close()))[0] == [(Kind.LOG, 0, b"why")]

    asyncio.run(fail())
