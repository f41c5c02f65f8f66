"""The pin in force, and its file in `state_dir`. Belongs to the event loop."""

import asyncio
import logging
from pathlib import Path

from grace.server.daemon_thread import DaemonThread
from grace.server.observe.logs import LOGGER
from grace.server.observe.metrics import Metrics
from grace.server.reload.decision import Pin
from grace.server.reload.pin_file import PinFile

_LOG = logging.getLogger(LOGGER)


class StoredPin:
    def __init__(self, folder: Path | None, metrics: Metrics) -> None:
        """Read the pin; a damaged one is a ConfigError. Without a folder there is none."""
        self.file = None if folder is None else PinFile(folder)
        self.pin = None if self.file is None else self.file.read()
        self._metrics = metrics
        self._writes = DaemonThread("grace-pin")

    def write(self, pin: Pin | None) -> asyncio.Future[None]:
        """Replace the file on another thread. The result may be an OSError."""
        file = self.file
        assert file is not None
        return self._writes.run(lambda: file.write(pin))

    def change(self, pin: Pin | None) -> None:
        if pin != self.pin:
            before, self.pin = self.pin, pin
            self.report("unpinned" if pin is None else "pinned", pin or before)

    def report(self, event: str, about: Pin | None) -> None:
        self._metrics.pinned(pinned=self.pin is not None)
        if about is not None:
            facts = {"snapshot_version": about.version, "until_above": about.until_above}
            _LOG.warning(event, extra=facts)
