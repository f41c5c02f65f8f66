"""The exception tree. A command ends with the `exit_code` of its error's class."""

from pathlib import Path

MOST_CHARACTERS = 1000  # in a message
MOST_OF_A_FAULT = 500  # in the fault of a file, which follows the file's name


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return the text as one printable line; of a long text, the middle is cut."""
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    if len(text) <= most:
        return text
    half = (most - len("...")) // 2
    return f"{text[:half]}...{text[-half:]}"


class GraceError(Exception):
    """A failure that the user can act on: the thing, the value and the remedy. Raise a subclass."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConfigError(GraceError):
    """A fault of a configuration or a schema file, with the key's path."""

    exit_code = 2


class InputError(GraceError):
    """A fault of a command's or a build's input: ads, arguments, folders."""

    exit_code = 2


class RejectedAdsError(InputError):
    """More ads were refused than --max-rejects allows."""


class RequestError(GraceError):
    """A fault of a request's field. `logged` is its path without names that a caller chose."""

    exit_code = 2

    def __init__(self, field: str, fault: str, logged: str | None = None) -> None:
        super().__init__(f"{field}: {fault}")
        self.field = field
        self.fault = fault
        self.logged = field if logged is None else logged


class FileError(GraceError):
    def __init__(self, file: str, fault: str, folder: Path | None = None) -> None:
        self.file = file
        self.fault = one_line(fault, MOST_OF_A_FAULT)
        self.folder = folder
        super().__init__(f"{file if folder is None else folder / file}: {self.fault}")


class SnapshotError(FileError):
    """A damaged, hostile or newer snapshot."""

    def within(self, folder: Path) -> "SnapshotError":
        return SnapshotError(self.file, self.fault, folder)


class CheckpointError(FileError):
    """A damaged checkpoint, or one that does not fit the snapshot."""


class NativeError(GraceError):
    """The native library is missing, stale, or reports a failure."""


class CoverageError(GraceError):
    """The ads of a build lost more targeting rules than allowed."""


class WorkerError(GraceError):
    """The worker or machine of a distributed build's task failed."""


class DeviceError(GraceError):
    """A device that is not there, or that GRACE does not compute on."""


class CallError(GraceError):
    """A call to a server failed."""

    def __init__(self, code: str, reason: str, text: str, attempts: int = 1) -> None:
        super().__init__(f"{code} ({reason}): {text}" if reason else f"{code}: {text}")
        self.code = code  # the name of the gRPC status
        self.reason = reason  # from our server; empty if another server answered
        self.text = text
        self.attempts = attempts


class InvalidCallError(CallError):
    """The server refuses what the request says."""

    exit_code = 2
