"""A call's bytes to a Retrieval: every limit of the configuration is enforced here, and named.

It runs on the event loop, so user and features stay bytes: what they may be is the input stage's to
say.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.index.users.wire_user import UserLimits, WireUser, split_user
from grace.model.engine.wire_features import (
    FeatureLimits,
    WireFeatures,
    integers_of,
    repeated,
    split_features,
)
from grace.proto.retrieval_pb2 import Events, Features, Ids, Numbers, RetrieveRequest, Values
from grace.server.errors import InvalidRequest, malformed
from grace.server.messages import Priority, Retrieval

__all__ = ["read_request"]

Message = TypeVar("Message")

PRIORITIES: Mapping[str, Priority] = {"": "NORMAL", "NORMAL": "NORMAL", "LOW": "LOW"}
SHOWN_CHARACTERS = 64
_WIDEST_CHARACTER = 4  # bytes in UTF-8
_NO_ADS = np.empty(0, np.int64)


def read_request(message: bytes, limits: LimitsConfig, generation: GenerationConfig) -> Retrieval:
    """Raises InvalidRequest: malformed, too_large, or invalid_field with the field's path."""
    if len(message) > limits.message_bytes:
        raise InvalidRequest(
            "",
            f"the request has {len(message)} bytes, at most {limits.message_bytes} "
            "(limits.message_bytes)",
            reason="too_large",
        )
    sid_length = len(generation.profiles[generation.default_profile].beams)
    user_limits, feature_limits = _wire_limits(limits, sid_length)
    features = split_features(message, feature_limits)
    rest = message if features is None else features[0]
    user = None if features is None else split_user(rest, user_limits)
    request = _parsed(rest if user is None else user[0])
    _require_bytes("request_id", request.request_id, limits.request_id_bytes, "request_id_bytes")
    for field in ("model", "sid_space", "profile", "priority"):
        _require_bytes(field, getattr(request, field), limits.value_bytes, "value_bytes")
    exclude_ads = repeated(request.exclude_ads)
    _require_count("exclude_ads", len(exclude_ads), "ads", limits.exclude_ads, "exclude_ads")
    return Retrieval(
        request_id=request.request_id,
        model=request.model,
        sid_space=request.sid_space,
        user=_user(request.user, limits) if user is None else user[1],
        features=(
            _features(request.features, limits, sid_length) if features is None else features[1]
        ),
        max_ads=_max_ads(request.max_ads, limits),
        profile=_profile(request.profile, generation),
        priority=_priority(request.priority),
        exclude_ads=(
            np.asarray(integers_of(exclude_ads), np.int64) if len(exclude_ads) else _NO_ADS
        ),
        include_sids=request.include_sids,
    )


def _parsed(message: bytes) -> RetrieveRequest:
    try:
        return RetrieveRequest.FromString(message)
    except DecodeError:
        raise malformed() from None


@lru_cache(maxsize=16)
def _wire_limits(limits: LimitsConfig, sid_length: int) -> tuple[UserLimits, FeatureLimits]:
    return (
        UserLimits(
            names=limits.names,
            name_bytes=limits.value_bytes,
            values=limits.values_per_name,
            together=limits.user_values,
            value_bytes=limits.value_bytes,
        ),
        FeatureLimits(
            names=limits.names,
            name_bytes=limits.value_bytes,
            values=limits.values_per_name,
            events=limits.events,
            sid_length=sid_length,
        ),
    )


def _max_ads(given: int, limits: LimitsConfig) -> int:
    if given > limits.max_ads:
        raise InvalidRequest("max_ads", f"{given} ads, at most {limits.max_ads} (limits.max_ads)")
    return given or limits.default_max_ads


def _profile(given: str, generation: GenerationConfig) -> str:
    if given and given not in generation.profiles:
        known = ", ".join(sorted(generation.profiles))
        raise InvalidRequest("profile", f"{_shown(given)} is not a profile here; known: {known}")
    return given or generation.default_profile


def _priority(given: str) -> Priority:
    priority = PRIORITIES.get(given)
    if priority is None:
        raise InvalidRequest("priority", f"{_shown(given)} is neither NORMAL nor LOW")
    return priority


def _user(user: Mapping[str, Values], limits: LimitsConfig) -> WireUser:
    """Of a request whose user is not plainly right: it may be so all the same."""
    _require_count("user", len(user), "names", limits.names, "names")
    together = 0
    for name, message in _named("user", user, limits):
        field, count = f"user.{name}.values", len(message.values)
        _require_count(field, count, "values", limits.values_per_name, "values_per_name")
        together += count
    _require_count("user", together, "values", limits.user_values, "user_values")
    for name, message in user.items():
        for value in message.values:
            if _is_longer(value, limits.value_bytes):
                raise InvalidRequest(
                    f"user.{name}.values",
                    f"a value has {len(value.encode())} bytes, at most {limits.value_bytes} "
                    "(limits.value_bytes)",
                )
    return WireUser.of(user)


def _features(features: Features, limits: LimitsConfig, sid_length: int) -> WireFeatures:
    """Of a request whose features are not plainly right: they may be so all the same."""
    dense, categorical = features.dense, features.categorical
    bags, sequences = features.bags, features.sequences
    names = len(dense) + len(categorical) + len(bags) + len(sequences)
    _require_count("features", names, "names", limits.names, "names")
    names += sum(len(events.side) for events in sequences.values())
    _require_count("features", names, "names", limits.names, "names")
    for name, numbers in _named("features.dense", dense, limits):
        _check_numbers(f"features.dense.{name}.values", numbers, limits)
    _check_ids("features.categorical", categorical, limits)
    _check_ids("features.bags", bags, limits)
    for name, events in _named("features.sequences", sequences, limits):
        _check_events(f"features.sequences.{name}", events, limits, sid_length)
    return WireFeatures.of(features)


def _check_numbers(field: str, message: Numbers, limits: LimitsConfig) -> None:
    count = len(message.values)
    _require_count(field, count, "values", limits.values_per_name, "values_per_name")
    for number in message.values:
        if not isfinite(number):
            raise InvalidRequest(field, f"{number} is not finite")


def _check_ids(parent: str, inputs: Mapping[str, Ids], limits: LimitsConfig) -> None:
    for name, message in _named(parent, inputs, limits):
        field, count = f"{parent}.{name}.ids", len(message.ids)
        _require_count(field, count, "ids", limits.values_per_name, "values_per_name")


def _check_events(field: str, message: Events, limits: LimitsConfig, sid_length: int) -> None:
    events = -(-len(message.sids) // sid_length)
    times = len(message.timestamps_ms)
    _require_count(f"{field}.sids", events, "events", limits.events, "events")
    _require_count(f"{field}.timestamps_ms", times, "events", limits.events, "events")
    for name, values in _named(f"{field}.side", message.side, limits):
        ids = len(values.ids)
        _require_count(f"{field}.side.{name}.ids", ids, "events", limits.events, "events")


def _named(
    parent: str, inputs: Mapping[str, Message], limits: LimitsConfig
) -> Iterator[tuple[str, Message]]:
    """The entries of a map, by names of bounded length."""
    short = limits.value_bytes // _WIDEST_CHARACTER
    for name in inputs:
        if len(name) > short:
            _require_bytes(parent, name, limits.value_bytes, "value_bytes", "a name")
        yield name, inputs[name]


def _require_count(field: str, count: int, what: str, most: int, setting: str) -> None:
    if count > most:
        raise InvalidRequest(field, f"{count} {what}, at most {most} (limits.{setting})")


def _require_bytes(field: str, text: str, most: int, setting: str, what: str = "it") -> None:
    if _is_longer(text, most):
        size = len(text.encode())
        raise InvalidRequest(field, f"{what} has {size} bytes, at most {most} (limits.{setting})")


def _is_longer(text: str, most: int) -> bool:
    return len(text) > most or not (text.isascii() or len(text.encode()) <= most)


def _shown(text: str) -> str:
    """A caller's own value, short enough for a status."""
    cut = text[:SHOWN_CHARACTERS]
    return repr(cut) if cut == text else f"{cut!r}..."
