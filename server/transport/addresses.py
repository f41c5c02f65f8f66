"""Addresses to listen on: how they are written, checked and held, and what is wrong with them."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any, TypeAlias

from grace.configs.errors import ConfigError

_Place: TypeAlias = tuple[int, int, int, Any]
"""Family, kind, protocol and address, as `socket` takes them."""


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refusal(section: str, host: str, port: int, fault: str) -> ConfigError:
    """`section` is the configuration's section that names the address."""
    option = "--port" if section == "listen" else f"--{section}-port"
    return ConfigError(
        f"{section}: {address(host, port)}: {fault[:1].lower()}{fault[1:]}; choose another "
        f"{section}.host or {section}.port ({option}; 0 takes a free one)"
    )


def fault_of(error: OSError | UnicodeError) -> str:
    """Word a fault of resolving or binding. A UnicodeError means a name that DNS cannot have."""
    if isinstance(error, UnicodeError):
        return "not a host name"
    return error.strerror or str(error)


def is_loopback(section: str, host: str, port: int) -> bool:
    """Return whether only this machine can reach the host: all its addresses are on loopback."""
    return all(ip_address(place[3][0]).is_loopback for place in _places(section, host, port))


@contextmanager
def held_port(section: str, host: str, port: int) -> Iterator[int]:
    """Reserve the address inside `with` for processes of this user, and yield its port.

    Port 0 means a free one. An error gives the reason, which gRPC itself does not report. A bound
    socket that does not listen reserves the address, and gets no connections. It is bound
    exclusively, which fails if other processes share the port. Then it allows sharing.
    """
    with ExitStack() as stack:
        faults: list[OSError] = []
        places = _places(section, host, port)
        for family, kind, protocol, where in places:
            try:
                held = _held((family, kind, protocol, (where[0], port, *where[2:])))
            except OSError as error:
                faults.append(error)
                continue
            stack.enter_context(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = held.getsockname()[1]
        taken = [fault for fault in faults if fault.errno == errno.EADDRINUSE]
        if taken or len(faults) == len(places):
            raise refusal(section, host, port, fault_of((taken or faults)[0]))
        yield port


def _held(place: _Place) -> socket.socket:
    try:
        return _bound(place, reuse=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    # Connections of a server that has ended may linger there.
    return _bound(place, reuse=True)


def _bound(place: _Place, *, reuse: bool) -> socket.socket:
    family, kind, protocol, where = place
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


def _places(section: str, host: str, port: int) -> list[_Place]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise refusal(section, host, port, fault_of(error)) from None
    # /etc/hosts may list a name twice, which would then find its own address taken.
    places = ((family, kind, protocol, where) for family, kind, protocol, _, where in found)
    return list(dict.fromkeys(places))
