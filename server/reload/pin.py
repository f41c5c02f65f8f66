"""The pin of a rollback: how it decides what a server serves, and its file in `state_dir`.

The file is one line of JSON with its digest, so that a damaged file is never read as another pin.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from grace.configs.errors import ConfigError
from grace.configs.regular_files import closing, read_regular, sync
from grace.index.snapshot import MAX_VERSION
from grace.index.storage import Published
from grace.index.storage.folder import write_new
from grace.server.observe.logs import LOG
from grace.server.threads import DaemonThread

NAME = "pin.json"
NEW = ".pin.new"
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pin:
    """The version that a rollback keeps a server at."""

    version: int
    until_above: int  # the pin ends once the server serves a version from CURRENT above this one

    def ends(self, seen: Published) -> bool:
        return seen.version is not None and seen.version > self.until_above


def decide(seen: Published, pin: Pin | None, served: int) -> int | None:
    """Return the version to load after a look at CURRENT; None: keep the served one.

    CURRENT may name an older version, too.
    """
    version = seen.version if pin is None or pin.ends(seen) else pin.version
    return None if version == served else version


def pin_for(version: int, served: int, seen: Published | None, before: Pin | None) -> Pin:
    """Return the pin of a rollback from version `served` to `version`.

    The pin outlasts whatever CURRENT names already, and never ends earlier than the pin before it.
    """
    named = 0 if seen is None else seen.version or 0
    return Pin(version, max(served, named, 0 if before is None else before.until_above))


class PinFile:
    """The pin in `state_dir`. Its methods read and write the disk, so they may block."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self) -> Pin | None:
        """Return the pin, or None if there is none. Raise ConfigError for a damaged file."""
        try:
            content = read_regular(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._fault(f"cannot be read: {error.strerror or error}") from None
        try:
            fields = json.loads(content)
            pin = Pin(fields["version"], fields["until_above"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._fault("is damaged") from None
        if content != _rendered(pin) or not 1 <= pin.version <= pin.until_above <= MAX_VERSION:
            raise self._fault("is damaged")
        return pin

    def write(self, pin: Pin | None) -> None:
        """Replace the pin, or remove it if None is given, and sync the disk. May raise OSError."""
        folder = self.path.parent
        if pin is None:
            self.path.unlink(missing_ok=True)
        else:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            (folder / NEW).unlink(missing_ok=True)
            with closing(os.open(folder, os.O_RDONLY | os.O_CLOEXEC)) as opened:
                write_new(NEW, opened, [_rendered(pin)], mode=0o600)
            (folder / NEW).replace(self.path)
        if folder.exists():
            sync(folder)

    def _fault(self, fault: str) -> ConfigError:
        return ConfigError(
            f"state_dir: {self.path}: {fault}; this file names the version that a rollback pinned: "
            "remove it to follow CURRENT, then roll back again if necessary"
        )


class StoredPin:
    """The pin in force, and its file. Belongs to the event loop."""

    def __init__(self, folder: Path | None, note: Callable[[bool], None]) -> None:
        """Read the pin; a damaged one is a ConfigError. Without a folder there is none."""
        self.file = None if folder is None else PinFile(folder)
        self.pin = None if self.file is None else self.file.read()
        self._note = note  # called with each report: whether there is a pin
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
        self._note(self.pin is not None)
        if about is not None:
            facts = {"snapshot_version": about.version, "until_above": about.until_above}
            LOG.warning(event, extra=facts)


def _rendered(pin: Pin) -> bytes:
    fields: dict[str, object] = {"version": pin.version, "until_above": pin.until_above}
    digest = xxhash.xxh3_64_hexdigest(json.dumps(fields).encode())
    return json.dumps({**fields, "xxh3_64": digest}).encode() + b"\n"
