"""The servers that a client calls: an address, a name with several, or a list of addresses.

"127.0.0.1:50051"                              one server
"ads.example.com:50051"                        every address that DNS lists, in turn
["10.0.0.1:50051", "10.0.0.2:50051"]           each of these, in turn
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeAlias

from grace.client.connection import Options
from grace.client.retry import CONFIG
from grace.configs.errors import InputError

Addresses: TypeAlias = str | Sequence[str]

MAX_PORT = 65535
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Target:
    """The target that gRPC calls, and its name in errors."""

    uri: str
    shown: str
    options: Options = ()


def target_of(addresses: Addresses, *, over_tls: bool = False) -> Target:
    """Return gRPC's target of HOST:PORT, or of several IP:PORT in plaintext."""
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    kinds = {_kind(address) for address in listed}
    shown = ", ".join(listed)
    if not listed:
        raise InputError("addresses: an empty list; give at least one HOST:PORT")
    if len(listed) == 1:
        return Target(shown, shown, _in_turn() if kinds == {"name"} else ())
    if len(kinds) > 1 or kinds == {"name"}:
        raise InputError(
            f"addresses {shown}: a list must have IP addresses of one kind; to call the servers "
            "by name, give them one name in DNS"
        )
    if over_tls:  # gRPC looks for the whole list in each certificate
        raise InputError(
            f"addresses {shown}: TLS needs one name; give the servers a name in DNS that their "
            "certificates have"
        )
    return Target(f"{kinds.pop()}:{','.join(listed)}", shown, _in_turn())


def _in_turn() -> Options:
    """Return the options to call every server that is ready in turn: the client itself retries."""
    parts = ("loadBalancingConfig", "healthCheckConfig")
    return (("grpc.service_config", json.dumps({part: CONFIG[part] for part in parts})),)


def _kind(address: str) -> str:
    """Return ipv4, ipv6 or name. Raise an InputError unless the address is HOST:PORT."""
    found = _ADDRESS.fullmatch(address)
    host = "" if found is None else found["ipv6"] or found["host"]
    try:
        kind = f"ipv{ip_address(host).version}"
    except ValueError:
        kind = "name"
    if found is None or (found["ipv6"] and kind != "ipv6"):
        fault = "expected HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051"
        raise InputError(f"address {address!r}: {fault}")
    if not 1 <= int(found["port"]) <= MAX_PORT:
        raise InputError(f"address {address!r}: the port must be 1 to {MAX_PORT}")
    return kind
