"""Addresses that are listened on: how they are written, checked and held, and what is wrong."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from grace.configs.errors import ConfigError

__all__ = ["address", "fault_of", "held_port", "refusal", "require_free"]

_Place: TypeAlias = tuple[int, int, int, Any]
"""Family, kind, protocol and address, as `socket` takes them."""


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refusal(section: str, host: str, port: int, fault: str) -> ConfigError:
    """`section` is the configuration's that names the address."""
    return ConfigError(
        f"{section}: {address(host, port)}: {fault[:1].lower()}{fault[1:]}; choose another "
        f"{section}.host or {section}.port (port 0 takes a free one)"
    )


def fault_of(error: OSError | UnicodeError) -> str:
    """Of resolving or binding an address. A UnicodeError is of a name that DNS cannot have."""
    if isinstance(error, UnicodeError):
        return "not a host name"
    return error.strerror or str(error)


def require_free(section: str, host: str, port: int) -> None:
    """gRPC does not say why it cannot listen, so the system is asked first."""
    with ExitStack() as stack:
        faults: list[OSError] = []
        places = _places(section, host, port)
        for place in places:
            try:
                stack.enter_context(_bound(place, reuse=True)).close()
            except OSError as error:
                faults.append(error)
        _require_some(faults, len(places), section, host, port)


@contextmanager
def held_port(section: str, host: str, port: int) -> Iterator[int]:
    """Inside, nobody takes the address but servers of this user that share their port. The port
    itself, a free one for 0.

    A socket that is bound and does not listen holds it: no connection comes to such a one. It is
    bound for itself alone, as it never would be to a port that others share, and then shares it.
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
        _require_some(faults, len(places), section, host, port)
        yield port


def _held(place: _Place) -> socket.socket:
    try:
        return _bound(place, reuse=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    # Perhaps only connections of a server that has ended linger there: they may.
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
    return [(family, kind, protocol, where) for family, kind, protocol, _, where in found]


def _require_some(faults: list[OSError], places: int, section: str, host: str, port: int) -> None:
    """None of the places may be taken, and one at least must be there."""
    taken = [fault for fault in faults if fault.errno == errno.EADDRINUSE]
    if taken or len(faults) == places:
        raise refusal(section, host, port, fault_of((taken or faults)[0]))
