"""The one exception tree; what a command exits with stands beside each leaf.

GraceError                 the message is for its reader: the thing, the value, the remedy
├── ConfigError            a configuration or schema file, with the key's path               2
├── InputError             a command's or a build's input: ads, arguments, folders           2
│   └── RejectedAdsError   more ads refused than --max-rejects allows                        2
├── RequestError           one request's user attributes or features, with the field's path  2
├── SnapshotError          a damaged, hostile or newer snapshot, with the file and the fault 1
└── NativeError            the native library is missing, stale, or reports a failure        1
"""

__all__ = [
    "ConfigError",
    "GraceError",
    "InputError",
    "NativeError",
    "RejectedAdsError",
    "RequestError",
    "SnapshotError",
]


class GraceError(Exception):
    """A failure that its reader can act on. Only subclasses are raised."""

    exit_code = 1


class ConfigError(GraceError):
    exit_code = 2


class InputError(GraceError):
    exit_code = 2


class RejectedAdsError(InputError):
    pass


class RequestError(GraceError):
    exit_code = 2

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field}: {fault}")
        self.field = field
        self.fault = fault


class SnapshotError(GraceError):
    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault


class NativeError(GraceError):
    pass
