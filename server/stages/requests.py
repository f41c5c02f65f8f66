"""A call's bytes to a Retrieval: C++ checks all of them, and enforces the configuration's limits.

It runs on the event loop, so user and features stay bytes: the input stage reads them.
"""

from collections.abc import Mapping

from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.native.wire import SHORT_MESSAGES
from grace.server.errors import ServiceError, invalid_field, refusal_of
from grace.server.messages import Priority, Retrieval

PRIORITIES: Mapping[str, Priority] = {"": "NORMAL", "NORMAL": "NORMAL", "LOW": "LOW"}
SHOWN_CHARACTERS = 64
_ROOT = "RetrieveRequest"


def read_request(message: bytes, limits: LimitsConfig, generation: GenerationConfig) -> Retrieval:
    """Raise a ServiceError if the request is malformed, too large, or has an invalid field."""
    if len(message) > limits.message_bytes:
        raise ServiceError(
            "too_large",
            f"the request has {len(message)} bytes, at most {limits.message_bytes} "
            "(limits.message_bytes)",
        )
    sid_length = len(generation.profiles[generation.default_profile].beams)
    head, fault = SHORT_MESSAGES.read(_ROOT, message, limits, sid_length)
    if fault is not None:
        raise refusal_of(fault, _ROOT)
    return Retrieval(
        message=message,
        request_id=head.text("request_id"),
        model=head.text("model"),
        sid_space=head.text("sid_space"),
        max_ads=head.number("max_ads") or limits.default_max_ads,
        profile=_profile(head.text("profile"), generation),
        priority=_priority(head.text("priority")),
        exclude_ads=head.integers("exclude_ads"),
        exclude=head.lists("exclude"),
        at_most=head.numbers("at_most"),
        include_sids=bool(head.number("include_sids")),
        strict=bool(head.number("strict")),
        at=head.number("at"),
    )


def request_id_of(message: bytes) -> str | None:
    """The request id of a message that may have been refused; None if its bytes are no request."""
    head, fault = SHORT_MESSAGES.read(_ROOT, message)
    return None if fault is not None and not fault.field else head.text("request_id")


def _profile(given: str, generation: GenerationConfig) -> str:
    if given and given not in generation.profiles:
        known = ", ".join(sorted(generation.profiles))
        raise invalid_field("profile", f"{_shown(given)} is not a profile here; known: {known}")
    return given or generation.default_profile


def _priority(given: str) -> Priority:
    priority = PRIORITIES.get(given)
    if priority is None:
        raise invalid_field("priority", f"{_shown(given)} is neither NORMAL nor LOW")
    return priority


def _shown(text: str) -> str:
    """A caller's own value, short enough for a status."""
    cut = text[:SHOWN_CHARACTERS]
    return repr(cut) if cut == text else f"{cut!r}..."
