"""Files of certificates or tokens, which the server reads again when they change.

It reads and checks the files of one credential together. If they cannot be used, the last usable
credential stays.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from grace.configs.errors import ConfigError

Credential = TypeVar("Credential")

_State: TypeAlias = tuple[int, int, int] | None
"""Time of change, size and inode; None if there is no such file."""


def ignore(fault: ConfigError | None) -> None:
    """Drop the report."""


class CredentialFiles(Generic[Credential]):
    """A credential and its files. Any thread may call the methods.

    read    reads the files; raises a ConfigError if they cannot be used
    report  called after each change, with the fault of the new files, or None if they are in use
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Credential],
        report: Callable[[ConfigError | None], None] = ignore,
    ) -> None:
        """Read the files; they must be usable now."""
        self.paths = tuple(paths)
        self._read = read
        self._report = report
        self._lock = threading.Lock()
        self._seen = self._states()
        self._credential = read()

    @property
    def latest(self) -> Credential:
        """The credential in use, without a check of the files."""
        return self._credential

    def look(self) -> Credential:
        """Read the files again if they have changed, and return the credential in use."""
        with self._lock:
            states = self._states()
            if states != self._seen:
                self._read_again(states)
            return self._credential

    def _read_again(self, states: list[_State]) -> None:
        credential, fault = self._credential, None
        try:
            credential = self._read()
        except ConfigError as error:
            fault = error
        if self._states() != states:
            return  # they are still being written: the next check decides
        self._credential, self._seen = credential, states
        self._report(fault)

    def _states(self) -> list[_State]:
        return list(map(_state, self.paths))


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
