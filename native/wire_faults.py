"""What C++ reports of the requests that it reads: faults in words, and names that are not declared.

Faults and fields are numbered as in native/include/grace/wire_faults.h.
"""

from collections.abc import Callable, Iterable, Sequence
from ctypes import c_char_p
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import RequestError

FAULT_NUMBERS = 9

BatchReport = tuple[tuple[RequestError | None, ...], tuple[tuple[str, ...], ...]]
"""Of each request: what is wrong with it; its names that are not declared, sorted."""

UNKNOWN_FIELD = (
    "it has a field that this server does not know (number {value}, wire type {limit}); leave it "
    "out, or upgrade the server first"
)

_KINDS = ("dense", "categorical", "bags", "sequences")

_SEQUENCE = "features.sequences.{name}"
_FIELDS = (
    "",
    *("request_id", "model", "sid_space", "profile", "priority", "exclude_ads", "max_ads"),
    *("exclude", "at_most"),
    *("user", "user.{name}", "user.{name}.values", "features"),
    *(f"features.{kind}" for kind in _KINDS),
    *(f"features.{kind}.{{name}}" for kind in _KINDS),
    *("features.dense.{name}.values", "features.categorical.{name}.ids"),
    *("features.bags.{name}.ids", f"{_SEQUENCE}.sids", f"{_SEQUENCE}.timestamps_ms"),
    *(f"{_SEQUENCE}.side", f"{_SEQUENCE}.side.{{side}}", f"{_SEQUENCE}.side.{{side}}.ids"),
    "RetrieveRequest",
)
_FAULTS = (
    "",
    "the bytes are not a grace.v1.RetrieveRequest",
    UNKNOWN_FIELD,
    "it has {value} bytes, at most {limit} (limits.request_id_bytes)",
    "it has {value} bytes, at most {limit} (limits.value_bytes)",
    "a name has {value} bytes, at most {limit} (limits.value_bytes)",
    "a value has {value} bytes, at most {limit} (limits.value_bytes)",
    "{value} names, at most {limit} (limits.names)",
    "{value} values, at most {limit} (limits.values_per_name)",
    "{value} values, at most {limit} (limits.user_values)",
    "{value} ids, at most {limit} (limits.values_per_name)",
    "{value} events, at most {limit} (limits.events)",
    "{value} ads, at most {limit} (limits.exclude_ads)",
    "{value} ids with those of exclude_ads, at most {limit} (limits.exclude_ads)",
    "{value} ads, at most {limit} (limits.max_ads)",
    "{number} is not finite",
    "'*' is reserved; name values, or send none",
    (
        "{value} distinct values, at most {limit} are allowed (max_request_values in the targeting "
        "schema); send fewer"
    ),
    "{value} values, the model takes {limit}",
    "{value} ids, the model takes one",
    "{value} is not one of 0 to {limit}",
    "{value} tokens, not a multiple of {limit}",
    "token {value} at position {place} of a SID is not one of 0 to {limit}",
    "number of values: {value}, of events: {limit}; send one for each event",
    "{value} is negative",
    "the model reads it as features.{kind}.{name}",
)
_NOT_FINITE, _OTHER_KIND = 15, 25
_RESERVED = 16
"""Faults above this number name an attribute or input that the schema or the model declares."""
_NO_NUMBERS = ("nan", "inf", "-inf")  # by 0 and the sign

_UNKNOWN_NUMBERS = 5
_UNKNOWN_ROOM = 64
"""Names of a batch that are not declared; if there are more, C++ reads the batch again."""


def fault_of(numbers: Iterable[int], message: bytes) -> RequestError | None:
    """Return the error of a fault's numbers; its field is empty if the bytes are no request."""
    fault, field, *names, value, limit, place = numbers
    if not fault:
        return None
    name, side = _names(names, message)
    words = _FAULTS[fault].format(
        name=name,
        value=value,
        limit=limit,
        place=place,
        number=_NO_NUMBERS[value] if fault == _NOT_FINITE else "",
        kind=_KINDS[value] if fault == _OTHER_KIND else "",
    )
    path = _FIELDS[field].format(name=name, side=side)
    # The log may hold names of the schema and the model, but none that the caller chose.
    logged = path if fault > _RESERVED else _FIELDS[field].format(name="*", side="*")
    return RequestError(path, words, logged)


def _names(spans: Iterable[int], message: bytes) -> tuple[str, str]:
    name_at, name_size, side_at, side_size = spans
    name = message[name_at : name_at + name_size]
    return name.decode(), message[side_at : side_at + side_size].decode()


def read_batch(
    read: Callable[..., None], handle: int, messages: Sequence[bytes], size: int, *rows: Any
) -> BatchReport:
    """Call a native function that reads messages into a batch's rows.

    Empty messages fill the batch up to `size` rows.
    """
    if not 0 <= len(messages) <= size:
        raise ValueError(f"a batch of {size} cannot hold {len(messages)} requests")
    pointers = (c_char_p * len(messages))(*messages)
    sizes = np.array([len(each) for each in messages], np.int64)
    faults = np.empty((len(messages), FAULT_NUMBERS), np.int64)
    ends = np.empty(len(messages), np.int64)
    room, listed = 0, _UNKNOWN_ROOM
    while room < listed:
        room = listed
        unknown = np.empty((room, _UNKNOWN_NUMBERS), np.int64)
        read(handle, len(messages), size, pointers, sizes, *rows, faults, room, unknown, ends)
        listed = int(ends[-1]) if len(messages) else 0
    no_faults, no_names = _nothing_of_each(len(messages))
    found: tuple[RequestError | None, ...] = no_faults
    if faults[:, 0].any():
        found = tuple(map(fault_of, faults.tolist(), messages))
    return found, _unknown_names(messages, unknown, ends) if listed else no_names


def _unknown_names(
    messages: Sequence[bytes], unknown: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], ...]:
    names = []
    begin = 0
    for message, end in zip(messages, ends.tolist(), strict=True):
        names.append(tuple(sorted({_path(each, message) for each in unknown[begin:end].tolist()})))
        begin = end
    return tuple(names)


def _path(numbers: Sequence[int], message: bytes) -> str:
    field, *spans = numbers
    name, side = _names(spans, message)
    return _FIELDS[field].format(name=name, side=side).partition(".")[2]


@lru_cache(maxsize=64)
def _nothing_of_each(
    requests: int,
) -> tuple[tuple[None, ...], tuple[tuple[str, ...], ...]]:
    return (None,) * requests, ((),) * requests
