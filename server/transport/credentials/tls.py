"""A listener's certificate, its faults, and gRPC credentials that follow its files.

gRPC asks for the certificate at every handshake, so a changed one serves the next connection.
Open connections keep theirs. gRPC itself sets the rest: TLS 1.2 or 1.3, its ciphers, ALPN h2.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import grpc

from grace.configs.errors import ConfigError
from grace.configs.pem_files import CERTIFICATE, read_certificates, read_pem, require_pair
from grace.configs.serving import TlsConfig

_VERSION_TAG, _UTC_TIME_TAG = 0xA0, 0x17

_State: TypeAlias = tuple[int, int, int] | None
"""Time of change, size and inode; None if there is no such file."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its chain and key, and the CAs of clients, in PEM.

    expires  when the certificate expires, in Unix seconds
    """

    key: bytes = field(repr=False)
    chain: bytes
    client_ca: bytes | None
    expires: float


class CertificateFiles:
    """The certificate of a section, such as `listen.tls`, which errors name. If its files change
    and cannot be used, the last usable certificate stays. Any thread may call the methods.

    report  called after each change, with the fault of the new files, or None if they are in use
    """

    def __init__(
        self,
        section: str,
        config: TlsConfig,
        report: Callable[[ConfigError | None], None] = lambda _: None,
    ) -> None:
        """Read the files; they must be usable now."""
        self._section, self._config, self._report = section, config, report
        given = (config.certificate, config.key, config.client_ca)
        self.paths = tuple(path for path in given if path is not None)
        self._lock = threading.Lock()
        self._seen = self._states()
        self._certificate = read_certificate(section, config)

    @property
    def latest(self) -> Certificate:
        """The certificate in use, without a check of the files."""
        return self._certificate

    def look(self) -> Certificate:
        """Read the files again if they have changed, and return the certificate in use."""
        with self._lock:
            states = self._states()
            if states != self._seen:
                self._read_again(states)
            return self._certificate

    def _read_again(self, states: list[_State]) -> None:
        certificate, fault = self._certificate, None
        try:
            certificate = read_certificate(self._section, self._config)
        except ConfigError as error:
            fault = error
        if self._states() != states:
            return  # they are still being written: the next check decides
        self._certificate, self._seen = certificate, states
        self._report(fault)

    def _states(self) -> list[_State]:
        return list(map(_state, self.paths))


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    served = files.look()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        latest = files.look()
        if latest is served:
            return None
        served = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        changed,  # type: ignore[arg-type]  # gRPC accepts None, too
        require_client_authentication=served.client_ca is not None,
    )


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    pair = (certificate.key, certificate.chain)
    return grpc.ssl_server_certificate_configuration([pair], certificate.client_ca)


def read_certificate(section: str, config: TlsConfig) -> Certificate:
    """Read the files, check each, and require that the key belongs to the certificate."""
    chain = read_certificates(f"{section}.certificate", config.certificate)
    key = read_pem(f"{section}.key", config.key)
    require_pair(section, config.certificate, config.key)
    client_ca = None
    if config.client_ca is not None:
        client_ca = read_certificates(f"{section}.client_ca", config.client_ca)
    try:
        end = expires(chain)
    except (ValueError, IndexError):
        raise ConfigError(
            f"{section}.certificate: {config.certificate}: its end of validity does not follow "
            "RFC 5280; have it issued again"
        ) from None
    return Certificate(key, chain, client_ca, end)


def expires(chain: bytes) -> float:
    """Return when the first certificate of the PEM chain expires, in Unix seconds."""
    (first, *_) = CERTIFICATE.findall(chain)
    ((_, certificate),) = _elements(ssl.PEM_cert_to_DER_cert(first.decode("ascii")))
    (_, signed), *_ = _elements(certificate)
    # RFC 5280: [version], serial number, algorithm, issuer, validity
    fields = [content for tag, content in _elements(signed) if tag != _VERSION_TAG]
    _, (tag, not_after) = _elements(fields[3])
    text = not_after.decode("ascii")
    if tag == _UTC_TIME_TAG:  # two digits of the year
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element, one after another."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # the size follows, in this number of bytes
            end = at + (size & 0x7F)
            size, at = int.from_bytes(der[at:end], "big"), end
        yield tag, der[at : at + size]
        at += size
