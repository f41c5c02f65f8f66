"""What a request that is turned away is told: why, and when to try again."""

from grace.server.errors import DeadlineUnmeetable, InvalidRequest, Overloaded
from grace.server.messages import PendingRequest

__all__ = ["displaced", "expired", "malformed", "queue_full", "turned_away", "unmeetable"]

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.001, 10.0
"""A prediction may be missing, or far off; callers do as they are told."""


def queue_full(places: int, retry_seconds: float) -> Overloaded:
    """`retry_seconds` until all that waits has been worked off."""
    text = f"{places} requests wait, and no more may; try again later"
    return Overloaded("queue_full", text, _bounded(retry_seconds))


def displaced(retry_seconds: float) -> Overloaded:
    text = "a request of NORMAL priority took the place of this LOW one; try again later"
    return Overloaded("displaced", text, _bounded(retry_seconds))


def unmeetable(left: float, needed: float) -> DeadlineUnmeetable:
    """With so many seconds left to its deadline, and needed as predicted."""
    text = f"{max(0.0, left) * 1000:.0f} ms are left, an answer takes {needed * 1000:.0f} ms now"
    return DeadlineUnmeetable("deadline_unmeetable", f"{text}; allow more time, or try again later")


def turned_away(request: PendingRequest, now: float, needed: float) -> DeadlineUnmeetable:
    """One that waited until there was too little time left, or none."""
    return unmeetable(request.deadline - now, needed) if request.deadline > now else expired()


def expired() -> DeadlineUnmeetable:
    text = "the deadline passed while the request waited; allow more time, or try again later"
    return DeadlineUnmeetable("deadline_exceeded", text)


def malformed() -> InvalidRequest:
    """Whoever finds that protobuf cannot read it."""
    text = "the bytes are not a grace.v1.RetrieveRequest"
    return InvalidRequest("", text, reason="malformed")


def _bounded(seconds: float) -> float:
    return min(max(MIN_RETRY_SECONDS, seconds), MAX_RETRY_SECONDS)
