"""The exception tree, with the exit code of a command at the end of each line.

GraceError                 the message names the thing, the value and the remedy
├── ConfigError            a configuration or schema file, with the key's path               2
├── InputError             a command's or a build's input: ads, arguments, folders           2
│   └── RejectedAdsError   more ads refused than --max-rejects allows                        2
├── RequestError           one request's user attributes or features, with the field's path  2
├── FileError              a damaged file
│   ├── SnapshotError      a damaged, hostile or newer snapshot, with the file and the fault 1
│   └── CheckpointError    a damaged checkpoint, or one that does not fit the snapshot       1
├── NativeError            the native library is missing, stale, or reports a failure        1
├── CoverageError          a build whose ads lost more targeting rules than allowed           1
├── WorkerError            a task of a distributed build whose worker or machine failed      1
├── DeviceError            a device that is not there, or that GRACE does not compute on     1
└── CallError              a call to a server: its code and reason, or that there is none    1
    └── InvalidCallError   the server refuses what the request says                          2
"""

from pathlib import Path

MOST_CHARACTERS = 1000  # in a message
MOST_OF_A_FAULT = 500  # in the fault of a file, which follows the file's name


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return the text as one line. It may quote a file that holds anything.

    Escape what is not printable, and cut the middle of a long text, which keeps the thing and the
    remedy.
    """
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    if len(text) <= most:
        return text
    half = (most - len("...")) // 2
    return f"{text[:half]}...{text[-half:]}"


class GraceError(Exception):
    """A failure that the user can act on. Code raises only its subclasses."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConfigError(GraceError):
    exit_code = 2


class InputError(GraceError):
    exit_code = 2


class RejectedAdsError(InputError):
    pass


class RequestError(GraceError):
    """A fault of a field. `logged` is its path for the log, without names that a caller chose."""

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
    def within(self, folder: Path) -> "SnapshotError":
        return SnapshotError(self.file, self.fault, folder)


class CheckpointError(FileError):
    pass


class NativeError(GraceError):
    pass


class CoverageError(GraceError):
    pass


class WorkerError(GraceError):
    pass


class DeviceError(GraceError):
    pass


class CallError(GraceError):
    def __init__(self, code: str, reason: str, text: str, attempts: int = 1) -> None:
        super().__init__(f"{code} ({reason}): {text}" if reason else f"{code}: {text}")
        self.code = code  # the name of the gRPC status
        self.reason = reason  # from our server; empty if another server answered
        self.text = text
        self.attempts = attempts


class InvalidCallError(CallError):
    exit_code = 2
