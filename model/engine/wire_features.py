"""A request's features while they are still the bytes they came in.

C++ sees at once whether they are plainly right, without an object for each list: well-formed, named
in ASCII, finite, within the limits (`native/src/features_check.cpp`). Only then are they left as
they are. What is not is for protobuf to read and for `grace.server.stages.requests` to name.
"""

from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from grace.model.definition.inputs import EventSequence, Integers, RequestFeatures
from grace.native.loader import declare, load_library_with_lock
from grace.proto.retrieval_pb2 import Features, Ids

__all__ = ["FeatureLimits", "Repeated", "WireFeatures", "integers_of", "repeated", "split_features"]

Item = TypeVar("Item", covariant=True)

_ARRAY_FROM = 64
"""Shorter fields are read faster as a list, longer ones as an array."""

_Span = c_int64 * 4

# A few microseconds on the event loop: giving the lock away and waiting for it would take longer.
_check = declare(
    "grace_features_check", c_char_p, c_int64, c_void_p, c_void_p, library=load_library_with_lock
)


class Repeated(Protocol[Item]):
    """A repeated field of the generated classes: `[:]` is the fastest way to a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: slice, /) -> Sequence[Item]: ...


@dataclass(frozen=True, slots=True)
class FeatureLimits:
    """At most so many: names together, bytes of each, values of an input, events of a sequence."""

    names: int
    name_bytes: int
    values: int
    events: int
    sid_length: int


@dataclass(frozen=True, slots=True)
class WireFeatures:
    """The bytes of a grace.v1.Features, well-formed and within the limits."""

    content: bytes = b""

    @staticmethod
    def of(features: Features) -> "WireFeatures":
        """As protobuf writes them: no name twice, lists in one piece."""
        return WireFeatures(features.SerializeToString())

    def read(self) -> RequestFeatures:
        features = Features.FromString(self.content)
        return RequestFeatures(
            dense={name: repeated(given.values)[:] for name, given in features.dense.items()},
            categorical=_ids(features.categorical),
            bags=_ids(features.bags),
            sequences={
                name: EventSequence(
                    integers_of(repeated(events.sids)),
                    integers_of(repeated(events.timestamps_ms)),
                    _ids(events.side),
                )
                for name, events in features.sequences.items()
            },
        )


def split_features(message: bytes, limits: FeatureLimits) -> tuple[bytes, WireFeatures] | None:
    """A RetrieveRequest's bytes without its features, and those, if they are plainly right."""
    span = _Span()
    _check(message, len(message), _limits(limits), span)
    plain, tag, begin, end = span
    if not plain:
        return None
    if not end:
        return message, WireFeatures()
    return message[:tag] + message[end:], WireFeatures(message[begin:end])


@lru_cache(maxsize=16)
def _limits(limits: FeatureLimits) -> Any:
    most = (limits.names, limits.name_bytes, limits.values, limits.events, limits.sid_length)
    return (c_int64 * 5)(*most)


def repeated(field: Sequence[Item]) -> Repeated[Item]:
    return cast("Repeated[Item]", field)


def integers_of(values: Repeated[int]) -> Integers:
    if len(values) < _ARRAY_FROM:
        return values[:]
    array: npt.NDArray[np.int64] = np.asarray(values, np.int64)
    return array


def _ids(inputs: Mapping[str, Ids]) -> dict[str, Integers]:
    return {name: integers_of(repeated(given.ids)) for name, given in inputs.items()}
