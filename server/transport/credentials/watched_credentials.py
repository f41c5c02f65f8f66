"""Read all certificates of a server at the start, and follow them while it runs."""

import asyncio
import logging
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from grace.configs.errors import ConfigError
from grace.configs.serving import ServingConfig, TlsConfig
from grace.server.observe.logs import LOGGER
from grace.server.observe.metrics import Metrics
from grace.server.transport.credentials.tls import CertificateFiles

LOOK_SECONDS = 1.0

_LOG = logging.getLogger(LOGGER)


class WatchedCredentials:
    """The certificates of the two listeners. Each is None if the configuration does not have it."""

    def __init__(self, config: ServingConfig, metrics: Metrics) -> None:
        """Read all files; a fault is a ConfigError."""
        self._metrics = metrics
        self._warned: set[tuple[str, float]] = set()  # listener, time of expiry
        self.listen = self._certificate("listen", config.listen.tls)
        self.admin = self._certificate("admin", config.admin.tls)
        self._check_expiry()

    def look(self) -> None:
        """Read changed files, log and count the changes, and set the metrics."""
        for files in (self.listen, self.admin):
            if files is not None:
                files.look()
        self._check_expiry()

    async def watch(self) -> None:
        """Check the files every second, on another thread: they may be on a network."""
        while self.listen or self.admin:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def _certificate(self, listener: str, config: TlsConfig | None) -> CertificateFiles | None:
        if config is None:
            return None
        setting = f"{listener}.tls"
        warn = partial(_warn_if_public, f"{setting}.key", config.key)
        files = CertificateFiles(setting, config, partial(self._changed, setting, warn))
        warn()
        return files

    def _changed(self, setting: str, warn: Callable[[], None], fault: ConfigError | None) -> None:
        self._metrics.credentials_loaded(setting, "ok" if fault is None else "failed")
        if fault is None:
            _LOG.info("credentials_loaded", extra={"setting": setting})
            warn()
        else:
            facts = {"setting": setting, "fault": str(fault)}
            _LOG.error("credentials_refused", extra=facts)

    def _check_expiry(self) -> None:
        """Set the metric of each certificate in use, and warn once of each that has expired."""
        for listener, files in (("listen", self.listen), ("admin", self.admin)):
            if files is None:
                continue
            expires = files.latest.expires
            self._metrics.certificate_expires(listener, expires)
            if expires <= time.time() and (listener, expires) not in self._warned:
                self._warned.add((listener, expires))
                _LOG.warning("certificate_expired", extra={"setting": f"{listener}.tls"})


def _warn_if_public(setting: str, path: Path) -> None:
    """Warn of a key that every user of the machine may read.

    The file's group may read it: Kubernetes gives the files of a Secret to the group of the pod
    (`fsGroup`).
    """
    with suppress(OSError):  # the file has gone; its old content is in use
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & stat.S_IROTH:
            facts = {"setting": setting, "path": str(path), "mode": f"{mode:04o}"}
            facts |= {"remedy": f"chmod 600 {path}"}
            _LOG.warning("secret_is_public", extra=facts)
