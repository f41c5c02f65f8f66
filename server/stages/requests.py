"""A call's bytes to a Retrieval: C++ checks all of them, and enforces the configuration's limits.

It runs on the event loop, so user and features stay bytes: the input stage reads them.
"""

from collections.abc import Mapping
from ctypes import c_char_p, c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import RequestError
from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.native.loader import array_out, declare, load_library_with_lock
from grace.native.wire_faults import FAULT_NUMBERS, fault_of
from grace.server.errors import ServiceError, invalid_field, malformed
from grace.server.messages import Priority, Retrieval

PRIORITIES: Mapping[str, Priority] = {"": "NORMAL", "NORMAL": "NORMAL", "LOW": "LOW"}
SHOWN_CHARACTERS = 64
_TEXTS = 5  # request_id, model, sid_space, profile, priority: where each begins, and its size
_NO_ADS = np.empty(0, np.int64)
_NOTHING: dict[str, Any] = {}

_Head = c_int64 * (2 * _TEXTS + 7)
_Fault = c_int64 * FAULT_NUMBERS

# Some microseconds on the event loop: giving the lock away and waiting for it would take longer.
_read = declare(
    "grace_request_read",
    *(c_char_p, c_int64, c_void_p, c_void_p, c_void_p),
    library=load_library_with_lock,
)
_read_excluded = declare(
    "grace_request_excluded",
    *(c_char_p, c_int64, c_int64, array_out(np.int64)),
    library=load_library_with_lock,
)
_read_entities = declare(
    "grace_request_entities",
    *(c_char_p, c_int64, c_int64, c_int64, c_int64),
    *(array_out(np.int64, 2), array_out(np.int64), array_out(np.int64, 2)),
    library=load_library_with_lock,
)


def read_request(message: bytes, limits: LimitsConfig, generation: GenerationConfig) -> Retrieval:
    """Raise a ServiceError if the request is malformed, too large, or has an invalid field."""
    if len(message) > limits.message_bytes:
        raise ServiceError(
            "too_large",
            f"the request has {len(message)} bytes, at most {limits.message_bytes} "
            "(limits.message_bytes)",
        )
    sid_length = len(generation.profiles[generation.default_profile].beams)
    head, numbers = _Head(), _Fault()
    _read(message, len(message), _limits(limits, sid_length), head, numbers)
    refusal = refusal_of(fault_of(numbers, message))
    if refusal is not None:
        raise refusal
    request_id, model, sid_space, profile, priority = _texts(message, head)
    max_ads, include_sids, strict, excluded, *entities = head[2 * _TEXTS :]
    exclude_ads = _NO_ADS
    if excluded:
        exclude_ads = np.empty(excluded, np.int64)
        _read_excluded(message, len(message), excluded, exclude_ads)
    exclude, at_most = _entities(message, *entities) if any(entities) else (_NOTHING, _NOTHING)
    return Retrieval(
        message=message,
        request_id=request_id,
        model=model,
        sid_space=sid_space,
        max_ads=max_ads or limits.default_max_ads,
        profile=_profile(profile, generation),
        priority=_priority(priority),
        exclude_ads=exclude_ads,
        exclude=exclude,
        at_most=at_most,
        include_sids=bool(include_sids),
        strict=bool(strict),
    )


def request_id_of(message: bytes) -> str | None:
    """The request id of a message that may have been refused; None if its bytes are no request."""
    head, numbers = _Head(), _Fault()
    _read(message, len(message), _limits(LimitsConfig(), sid_length=1), head, numbers)
    fault = fault_of(numbers, message)
    return None if fault is not None and not fault.field else _texts(message, head)[0]


def refusal_of(fault: RequestError | None) -> ServiceError | None:
    if fault is None:
        return None
    return invalid_field(fault.field, fault.fault, fault.logged) if fault.field else malformed()


def _texts(message: bytes, head: Any) -> list[str]:
    return [
        message[head[i] : head[i] + head[i + 1]].decode() if head[i + 1] else ""
        for i in range(0, 2 * _TEXTS, 2)
    ]


def _entities(
    message: bytes, excluded_names: int, excluded_ids: int, limited_names: int
) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, int]]:
    """Return `exclude` and `at_most` by name."""
    excluded = np.empty((excluded_names, 3), np.int64)
    ids = np.empty(excluded_ids, np.int64)
    limited = np.empty((limited_names, 3), np.int64)
    sizes = (excluded_names, excluded_ids, limited_names)
    _read_entities(message, len(message), *sizes, excluded, ids, limited)
    exclude, end = {}, 0
    for begin, size, count in excluded.tolist():
        exclude[message[begin : begin + size].decode()] = ids[end : end + count]
        end += count
    at_most = {message[at : at + size].decode(): most for at, size, most in limited.tolist()}
    return exclude, at_most


@lru_cache(maxsize=16)
def _limits(limits: LimitsConfig, sid_length: int) -> Any:
    return (c_int64 * 9)(
        *(limits.request_id_bytes, limits.value_bytes, limits.names, limits.values_per_name),
        *(limits.user_values, limits.events, limits.exclude_ads, limits.max_ads, sid_length),
    )


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
