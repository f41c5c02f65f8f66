"""Connect to a server, with or without TLS, and explain why calls failed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from grace.configs.errors import CallError, ConfigError, InputError, InvalidCallError
from grace.configs.pem_files import read_certificates, read_pem, require_pair

Options = Sequence[tuple[str, Any]]

OPTIONS: Options = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # While calls are open: notice a server whose machine is gone. Servers allow one PING in 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
REFUSED = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
"""Statuses that refuse what the request says."""
NO_SUCH_SERVICE = ("UNIMPLEMENTED", "NOT_FOUND")
"""Statuses of a call and of a health check that another service answers."""
RETRIEVE_ELSEWHERE = (
    "Retrieve; it may be the Admin address: use the one that the section listen listens on"
)

_CLOSED = ("Socket closed", "reset by peer", "TSI_DATA_CORRUPTED")
"""What gRPC says of a connection that ends before its first call."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files of a client."""

    # CAs that may have signed the server's certificate; None: gRPC's list of public CAs
    ca: Path | None = None
    # this client's certificate, with its `key`, if the server requires one
    certificate: Path | None = None
    key: Path | None = None


def channel(address: str, tls: Tls | None, options: Options = OPTIONS, library: Any = grpc) -> Any:
    """Return a channel of `library`, which is grpc or grpc.aio."""
    if tls is None:
        return library.insecure_channel(address, options=options)
    return library.secure_channel(address, channel_credentials(tls), options=options)


@dataclass(frozen=True, slots=True)
class FailedCall:
    """The end of one attempt of a call, as gRPC reports it."""

    code: str
    reason: str  # the server's one-word reason, empty if a gRPC library answered
    text: str
    # the seconds that the server asks to wait before the next attempt; below 0, it wants none
    push_back: float | None = None

    @classmethod
    def of(cls, error: grpc.RpcError) -> "FailedCall":
        trailers = dict(cast(Iterable[tuple[str, str]], error.trailing_metadata() or ()))
        advice = trailers.get("grpc-retry-pushback-ms")
        return cls(
            code=error.code().name,
            reason=trailers.get("grace-reason", ""),
            text=" ".join((error.details() or "").split()),
            push_back=None if advice is None else _push_back(advice),
        )


def call_error(
    address: str,
    tls: Tls | None,
    failed: FailedCall,
    other: str = RETRIEVE_ELSEWHERE,
    attempts: int = 1,
) -> CallError:
    """Return the error of a call. `other` names the service, and what may answer instead of it."""
    code, reason, text = failed.code, failed.reason, failed.text
    if code in REFUSED:
        return InvalidCallError(code, reason, text, attempts)
    if not reason and code == "UNAVAILABLE":
        text = connection_fault(address, text, tls) or (
            f"no server at {address}; start it (grace serve), or use another address"
        )
    elif not reason and code == "DEADLINE_EXCEEDED":
        text = f"{address} did not answer in time; allow a longer timeout"
    elif not reason and code in NO_SUCH_SERVICE:
        text = f"what answers at {address} does not serve {other}"
    return CallError(code, reason, text, attempts)


def tls_of(ca: Path | None, certificate: Path | None, key: Path | None) -> Tls | None:
    """Return what a command's options describe. Any of them turns TLS on."""
    return None if ca is certificate is key is None else Tls(ca, certificate, key)


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Read the files; raise an InputError that names a faulty one."""
    if (tls.certificate is None) != (tls.key is None):
        given, missing = (
            ("key", "certificate") if tls.certificate is None else ("certificate", "key")
        )
        raise InputError(f"tls.{given} is given without tls.{missing}; give both, or neither")
    try:
        ca = None if tls.ca is None else read_certificates("tls.ca", tls.ca)
        if tls.certificate is None or tls.key is None:
            return grpc.ssl_channel_credentials(ca)
        certificate = read_certificates("tls.certificate", tls.certificate)
        require_pair("tls", tls.certificate, tls.key)
        return grpc.ssl_channel_credentials(ca, read_pem("tls.key", tls.key), certificate)
    except ConfigError as error:
        raise InputError(str(error)) from None


def connection_fault(address: str, text: str, tls: Tls | None) -> str | None:
    """Return why what listens at the address does not take calls like this one.

    `text` is gRPC's error. Return None if there seems to be no server.
    """
    known = _known_fault(_PASSING_FAULTS, address, text) or lasting_fault(address, text)
    return known or _closed(address, text, tls)


def lasting_fault(address: str, text: str) -> str | None:
    """Return a fault that neither a new attempt nor waiting can cure, or None."""
    return _known_fault(_LASTING_FAULTS, address, text)


def _known_fault(faults: Mapping[str, str], address: str, text: str) -> str | None:
    return next((fault.format(address) for sign, fault in faults.items() if sign in text), None)


_PASSING_FAULTS = {
    "backend unhealthy": "the server at {} is starting, or drains; see its log and /healthz",
    "no healthy upstream": "the proxy at {} has no healthy server behind it; see the servers' logs",
}
"""What gRPC's texts mean, by a part of the text. The first part that a text has decides."""
_OTHER_NAME = (
    "the certificate of {} is for another name; use an address that it names, or give the server a "
    "certificate for this one"
)
_LASTING_FAULTS = {
    "Failed parsing HTTP/2": "what answers at {} is not a gRPC server; it may be the metrics port: "
    "use the port of the section listen (50051 by default) or admin (50052)",
    "certificate has expired": "the certificate of {} has expired; the server needs a new one",
    "Hostname Verification": _OTHER_NAME,
    "not in peer certificate": _OTHER_NAME,
    "CERTIFICATE_VERIFY_FAILED": "this client trusts no CA that signed the certificate of {}; give "
    "the CA that did (--tls-ca, or Tls(ca=...))",
    "WRONG_VERSION_NUMBER": "the server at {} does not speak TLS; connect without it",
}


def _closed(address: str, text: str, tls: Tls | None) -> str | None:
    """Return why the server may have closed a connection before its first call, or None."""
    refused = any(each in text for each in ("failed to connect", "all backends failing"))
    if not (refused and any(each in text for each in _CLOSED)):
        return None
    if tls is None:
        why = "it may speak only TLS (--tls-ca, or Tls(ca=...))"
    elif tls.certificate is None:
        why = "it may require a client certificate (--tls-certificate and --tls-key, or Tls(...))"
    else:
        why = "it may not trust the CA of this client's certificate, or the certificate has expired"
    return f"the server at {address} closed the connection: {why}"


def _push_back(text: str) -> float:
    """Return seconds. To gRPC, a text that is not a number means that the server wants no retry."""
    try:
        return int(text) / 1e3
    except (ValueError, OverflowError):
        return -1.0
