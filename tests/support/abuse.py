"""Act as a hostile client of one kind: `python abuse.py KIND ADDRESS`.

The process prints a line once it has begun, and goes on until it is killed.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from hyperframe.frame import SettingsFrame

from grace.configs.serving import LimitsConfig
from support.raw_http2 import RawHttp2
from support.retrieve_calls import Caller, give_up

_CALLS = LimitsConfig().connection_calls


def burst(address: str) -> None:
    """Up to eight connections, each with as many calls as it may have, again and again.

    One connection per processor: the event loop takes a burst's calls in one by one, and here it
    shares the processors with those who call.
    """
    connections = min(8, len(os.sched_getaffinity(0)))
    while True:
        with ExitStack() as stack:
            clients = [stack.enter_context(RawHttp2(address)) for _ in range(connections)]
            for client in clients:
                client.call(_CALLS)
            for client in clients:
                client.read_ends(_CALLS)


def calling(
    connections: int, pause: float, call: Callable[[RawHttp2], None], window: int | None = None
) -> Callable[[str], None]:
    """Return a client that makes more calls on each of some connections, again and again."""

    def attack(address: str) -> None:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(RawHttp2(address, window=window)) for _ in range(connections)
            ]
            while True:
                for client in clients:
                    with suppress(OSError):
                        call(client)
                time.sleep(pause)

    return attack


def trickle(client: RawHttp2) -> None:
    """Make calls, and read replies in small pieces."""
    client.call(16)
    client.allow(7)


def resets(address: str) -> None:
    """Calls that are withdrawn as soon as they are made (CVE-2023-44487)."""
    while True:
        with suppress(OSError, EOFError), RawHttp2(address) as client:
            for _ in range(200):
                client.call(100, reset=True)
                time.sleep(0.005)


def idle(address: str) -> None:
    """900 connections without calls."""
    with ExitStack() as stack:
        for _ in range(900):
            stack.enter_context(RawHttp2(address))
        while True:
            time.sleep(1)


def pings(address: str) -> None:
    """PINGs on connections that are opened again when the server closes them."""
    while True:
        with suppress(OSError, EOFError), RawHttp2(address) as client:
            client.read_until(SettingsFrame)
            client.ping(1000)
            client.read_to_the_end()


def cancels(address: str) -> None:
    """A client that gives up its calls within 5 ms."""
    caller = Caller(address)
    while True:
        give_up(caller, b"", 1000)


SOME = _CALLS // 8
HALF = b"\0\0\0\0\x09half"
WATCH = {":path": b"/grpc.health.v1.Health/Watch"}

KINDS: Mapping[str, Callable[[str], None]] = {
    "burst": burst,
    "unread": calling(5, 0.5, lambda client: client.call(SOME), window=0),
    "unsent": calling(16, 0.5, lambda client: client.call(SOME, sent=HALF, ends=False)),
    "watches": calling(16, 0.5, lambda client: client.call(SOME, headers=WATCH)),
    "slow": calling(5, 0.2, trickle, window=7),
    **{each.__name__: each for each in (resets, idle, pings, cancels)},
}
"""`unread` reads no reply, `unsent` sends half of each request, `watches` are too many."""


if __name__ == "__main__":
    os.nice(5)
    print("begun", flush=True)
    KINDS[sys.argv[1]](sys.argv[2])
