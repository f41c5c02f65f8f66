"""Every failure of a call: one table of reasons with their statuses, and the text for the caller.

Only `text` and `trailers` reach a caller. The text may name a value of the caller's own request.
Measured numbers are in the trailers, so that load tools can count equal texts together. The log
must not contain values of callers, so it has `reason` and `field` only.
"""

from collections.abc import Mapping
from functools import partial

from grpc import StatusCode

from grace.configs.errors import RequestError, one_line
from grace.native.wire import words_of

REASONS: Mapping[StatusCode, str] = {
    StatusCode.INVALID_ARGUMENT: "malformed too_large invalid_field",
    StatusCode.FAILED_PRECONDITION: (
        "wrong_model wrong_sid_space no_state_dir update_gap load_failed load_refused"
    ),
    StatusCode.RESOURCE_EXHAUSTED: (
        "too_many_calls too_many_updates too_many_loads too_many_explanations queue_full displaced "
        "overloaded"
    ),
    StatusCode.DEADLINE_EXCEEDED: "deadline_unmeetable deadline_exceeded",
    StatusCode.CANCELLED: "cancelled",
    StatusCode.UNAVAILABLE: "not_ready draining update_not_kept",
    StatusCode.INTERNAL: "internal not_finite stage_died",
}
STATUS_OF = {each: status for status, reasons in REASONS.items() for each in reasons.split()}

SHED_REASONS = frozenset({"queue_full", "displaced", "overloaded"})
"""Reasons to refuse a valid request for lack of room in the queue."""

FIELD_CHARACTERS = 128  # of a path, which holds the caller's names: the fault needs room, too

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.001, 10.0
"""Bounds of the advice when to try again: a prediction may be missing, or far off."""


class ServiceError(Exception):
    def __init__(
        self,
        reason: str,
        text: str,
        field: str | None = None,
        retry_seconds: float | None = None,
        # durations by the names of their trailers, which hold milliseconds
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason  # a key of STATUS_OF, which metrics, logs and trailers show
        self.code = STATUS_OF[reason]
        self.text = text  # what the caller reads
        # the path of the faulty field, if there is one, as the log shows it: with * for names that
        # the caller chose
        self.field = field
        self.retry_seconds = retry_seconds  # when to try again, if that is known
        self.trailers: tuple[tuple[str, str], ...] = (("grace-reason", reason),)
        if retry_seconds is not None:
            # gRPC's built-in retries read this trailer.
            advice = min(max(MIN_RETRY_SECONDS, retry_seconds), MAX_RETRY_SECONDS)
            self.trailers += (("grpc-retry-pushback-ms", f"{advice * 1000:.0f}"),)
        for name, value in (seconds or {}).items():
            self.trailers += ((name, f"{value * 1000:.0f}"),)


not_ready = partial(
    ServiceError, "not_ready", "the server is starting; ask again, or watch its health"
)
draining = partial(ServiceError, "draining", "the server is shutting down; ask another one")
cancelled = partial(ServiceError, "cancelled", "cancelled by the caller")
expired = partial(
    ServiceError,
    "deadline_exceeded",
    "the request waited until its deadline, or until too little time was left for an answer; allow "
    "more time, or try again later",
)
displaced = partial(
    ServiceError,
    "displaced",
    "a request of NORMAL priority, or of a connection with fewer waiting requests, took the place "
    "of this one; try again later",
)
overloaded = partial(
    ServiceError,
    "overloaded",
    "the queue has been longer than batching.target_queue_ms for too long; try again after "
    "grpc-retry-pushback-ms",
)


def malformed(message: str) -> ServiceError:
    return ServiceError("malformed", words_of("Malformed", path=message))


def invalid_field(field: str, fault: str, logged: str | None = None) -> ServiceError:
    """`logged` is the field's path without names that the caller chose."""
    text = f"{one_line(field, FIELD_CHARACTERS)}: {fault}"
    return ServiceError("invalid_field", text, field if logged is None else logged)


def refusal_of(fault: RequestError, message: str) -> ServiceError:
    """Return the refusal of a message. A fault without a field means malformed bytes."""
    if not fault.field:
        return malformed(message)
    return invalid_field(fault.field, fault.fault, fault.logged)


def queue_full(places: int, retry_seconds: float) -> ServiceError:
    """Return the refusal; in `retry_seconds` all waiting requests will have been answered."""
    text = f"{places} requests wait, and no more may (batching.max_waiting); try again later"
    return ServiceError("queue_full", text, retry_seconds=retry_seconds)


def unmeetable(left: float, needed: float) -> ServiceError:
    """Return the refusal of a call with `left` seconds, whose answer probably takes `needed`."""
    text = "an answer takes longer now than the time left; allow more time, or try again later"
    numbers = {"grace-deadline-left-ms": max(0.0, left), "grace-predicted-ms": needed}
    return ServiceError("deadline_unmeetable", text, seconds=numbers)


def internal(reason: str = "internal") -> ServiceError:
    """Return a failure of the server. The log has its cause, with the request's id."""
    return ServiceError(reason, "internal error; the server's log has it under the request's id")
