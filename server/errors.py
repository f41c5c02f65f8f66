"""Every failure of a call, with its status.

ServiceError            has a reason, which metrics, logs and the trailer carry
├── InvalidRequest      INVALID_ARGUMENT     what the request says, with the field's path
├── WrongPair           FAILED_PRECONDITION  another model or SID space than the loaded ones
├── Overloaded          RESOURCE_EXHAUSTED   with the time after which to try again
├── DeadlineUnmeetable  DEADLINE_EXCEEDED    too little time left, or none
├── Cancelled           CANCELLED            by the caller
├── NotReady            UNAVAILABLE          still starting
├── Draining            UNAVAILABLE          on its way out
└── InternalError       INTERNAL             ours; its text goes to the log, never to the caller

Only `text` reaches a caller. It may name a value of the caller's own request. A log may not, so it
has `reason` and `field` only.
"""

from typing import ClassVar

import grpc

FIELD_CHARACTERS = 128

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.001, 10.0
"""Bounds of the advice when to try again: a prediction may be missing, or far off."""


class ServiceError(Exception):
    """One request's failure. Only subclasses are raised."""

    code: ClassVar[grpc.StatusCode]

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.text = text

    @property
    def field(self) -> str | None:
        """The path of the faulty field of the request, if the error is about one."""
        return None

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The reason in a form that programs read."""
        return (("grace-reason", self.reason),)


class InvalidRequest(ServiceError):
    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, fault: str, reason: str = "invalid_field") -> None:
        path = _bounded(field)
        super().__init__(reason, f"{path}: {fault}" if path else fault)
        self._field = path

    @property
    def field(self) -> str | None:
        return self._field or None


class WrongPair(ServiceError):
    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"wrong_{field}", f"{field}: {text}")
        self._field = field

    @property
    def field(self) -> str | None:
        return self._field


class Overloaded(ServiceError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, reason: str, text: str, retry_after_seconds: float) -> None:
        super().__init__(reason, text)
        self.retry_after_seconds = retry_after_seconds

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        # gRPC's own retries read this one.
        pushback = ("grpc-retry-pushback-ms", str(round(self.retry_after_seconds * 1000)))
        return (("grace-reason", self.reason), pushback)


class DeadlineUnmeetable(ServiceError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(ServiceError):
    code = grpc.StatusCode.CANCELLED

    def __init__(self) -> None:
        super().__init__("cancelled", "cancelled by the caller")


class NotReady(ServiceError):
    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("not_ready", "the server is starting; ask again, or watch its health")


class Draining(ServiceError):
    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("draining", "the server is shutting down; ask another one")


class InternalError(ServiceError):
    """`text` is fixed: the log says what went wrong, next to the request's id."""

    code = grpc.StatusCode.INTERNAL

    def __init__(self, reason: str = "internal") -> None:
        super().__init__(reason, "internal error; the server's log has it under the request's id")


def malformed() -> InvalidRequest:
    text = "the bytes are not a grace.v1.RetrieveRequest"
    return InvalidRequest("", text, reason="malformed")


def queue_full(places: int, retry_seconds: float) -> Overloaded:
    """`retry_seconds` until all waiting requests have been answered."""
    text = f"{places} requests wait, and no more may; try again later"
    return Overloaded("queue_full", text, _retry_after(retry_seconds))


def displaced(retry_seconds: float) -> Overloaded:
    text = "a request of NORMAL priority took the place of this LOW one; try again later"
    return Overloaded("displaced", text, _retry_after(retry_seconds))


def unmeetable(left: float, needed: float) -> DeadlineUnmeetable:
    """`left` seconds to the deadline are fewer than an answer is predicted to need."""
    text = f"{max(0.0, left) * 1000:.0f} ms are left, an answer takes {needed * 1000:.0f} ms now"
    return DeadlineUnmeetable("deadline_unmeetable", f"{text}; allow more time, or try again later")


def expired() -> DeadlineUnmeetable:
    text = "the deadline passed while the request waited; allow more time, or try again later"
    return DeadlineUnmeetable("deadline_exceeded", text)


def _retry_after(seconds: float) -> float:
    return min(max(MIN_RETRY_SECONDS, seconds), MAX_RETRY_SECONDS)


def _bounded(field: str) -> str:
    """Cut the middle of a path: it holds the caller's names, and must leave room for the fault."""
    if len(field) <= FIELD_CHARACTERS:
        return field
    half = FIELD_CHARACTERS // 2
    return f"{field[:half]}...{field[-half:]}"
