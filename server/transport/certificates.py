"""The listeners' certificates, their faults, and gRPC credentials that follow their files.

gRPC asks for the certificate at every handshake, so a changed one serves the next connection.
Open connections keep theirs. gRPC itself sets the rest: TLS 1.2 or 1.3, its ciphers, ALPN h2.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import grpc

from grace.configs.errors import ConfigError
from grace.configs.pem_files import read_certificates, read_pem, require_pair
from grace.configs.serving import ServingConfig, TlsConfig
from grace.server.observe.logs import LOG

LOOK_SECONDS = 1.0

Certificate: TypeAlias = grpc.ServerCertificateConfiguration
"""A certificate with its chain and key, and the CAs of clients, as gRPC takes them."""

_State: TypeAlias = tuple[int, int, int] | None
"""Time of change, size and inode; None if there is no such file."""


class CertificateFiles:
    """The certificate of a section, such as `listen.tls`, which errors name. If its files change
    and cannot be used, the last usable certificate stays. Any thread may call the methods.
    """

    def __init__(
        self,
        section: str,
        config: TlsConfig,
        # called after each change, with the fault of the new files, or None if they are in use
        report: Callable[[ConfigError | None], None] = lambda _: None,
    ) -> None:
        """Read the files; they must be usable now."""
        self._section, self._config, self._report = section, config, report
        given = (config.certificate, config.key, config.client_ca)
        self.paths = tuple(path for path in given if path is not None)
        self.asks_clients = config.client_ca is not None  # for a certificate
        self._lock = threading.Lock()
        self._seen = self._states()
        self._certificate = read_certificate(section, config)

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

    def changed() -> Certificate | None:
        nonlocal served
        latest = files.look()
        if latest is served:
            return None
        served = latest
        return latest

    return grpc.dynamic_ssl_server_credentials(
        served,
        changed,  # type: ignore[arg-type]  # gRPC accepts None, too
        require_client_authentication=files.asks_clients,
    )


def read_certificate(section: str, config: TlsConfig) -> Certificate:
    """Read the files, check each, and require that the key belongs to the certificate."""
    chain = read_certificates(f"{section}.certificate", config.certificate)
    key = read_pem(f"{section}.key", config.key)
    require_pair(section, config.certificate, config.key)
    client_ca = None
    if config.client_ca is not None:
        client_ca = read_certificates(f"{section}.client_ca", config.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)


class WatchedCredentials:
    """The certificates of the two listeners. Each is None if the configuration does not have it."""

    def __init__(self, config: ServingConfig, count: Callable[[str, str], None]) -> None:
        """Read all files. `count` gets the setting of changed ones, and `ok` or `failed`."""
        self._count = count
        self.listen = self._certificate("listen", config.listen.tls)
        self.admin = self._certificate("admin", config.admin.tls)

    def look(self) -> None:
        """Read changed files, and log and count the changes."""
        for files in (self.listen, self.admin):
            if files is not None:
                files.look()

    async def watch(self) -> None:
        """Check the files every second, on another thread: they may be on a network."""
        while self.listen or self.admin:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def _certificate(self, listener: str, config: TlsConfig | None) -> CertificateFiles | None:
        if config is None:
            return None
        setting = f"{listener}.tls"
        return CertificateFiles(setting, config, partial(self._changed, setting))

    def _changed(self, setting: str, fault: ConfigError | None) -> None:
        self._count(setting, "ok" if fault is None else "failed")
        if fault is None:
            LOG.info("credentials_loaded", extra={"setting": setting})
        else:
            LOG.error("credentials_refused", extra={"setting": setting, "fault": str(fault)})
