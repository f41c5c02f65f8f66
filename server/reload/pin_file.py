"""The pin of a rollback, in a file that outlasts restarts.

The file is one line of JSON with its digest, so that a damaged file is never read as another pin.
"""

import json
import os
from pathlib import Path

import xxhash

from grace.configs.errors import ConfigError
from grace.configs.regular_files import closing, read_regular, sync
from grace.index.snapshot import MAX_VERSION
from grace.index.storage.folder import write_new
from grace.server.reload.decision import Pin

NAME = "pin.json"
NEW = ".pin.new"
_MOST_BYTES = 4096


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


def _rendered(pin: Pin) -> bytes:
    fields: dict[str, object] = {"version": pin.version, "until_above": pin.until_above}
    digest = xxhash.xxh3_64_hexdigest(json.dumps(fields).encode())
    return json.dumps({**fields, "xxh3_64": digest}).encode() + b"\n"
