"""The plain reader of requests, a strict one and protobuf's own. Tests compare C++ with it.

Where several things are wrong with a request, both name the first one, maps in the order of names.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TypeVar

import numpy as np

from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import Events, Features, Ids, Numbers, RetrieveRequest, Values
from grace.server.errors import ServiceError, invalid_field, malformed
from grace.server.messages import Priority, Retrieval
from support.plain_inputs import EventSequence, RequestFeatures
from support.strict_wire import REQUEST, MalformedError, UnknownFieldError, decode

Message = TypeVar("Message")

PRIORITIES: Mapping[str, Priority] = {"": "NORMAL", "NORMAL": "NORMAL", "LOW": "LOW"}
SHOWN_CHARACTERS = 64


def plain_request(message: bytes, limits: LimitsConfig, generation: GenerationConfig) -> Retrieval:
    """Raises ServiceError."""
    if len(message) > limits.message_bytes:
        raise ServiceError(
            "too_large",
            f"the request has {len(message)} bytes, at most {limits.message_bytes} "
            "(limits.message_bytes)",
        )
    try:
        decode(message, REQUEST)
    except MalformedError:
        raise malformed() from None
    except UnknownFieldError as error:
        raise invalid_field(
            error.within or "RetrieveRequest",
            f"it has a field that this server does not know (number {error.number}, wire type "
            f"{error.written_as}); leave it out, or upgrade the server first",
        ) from None
    request = RetrieveRequest.FromString(message)
    sid_length = len(generation.profiles[generation.default_profile].beams)
    _require_bytes("request_id", request.request_id, limits.request_id_bytes, "request_id_bytes")
    for field in ("model", "sid_space", "profile", "priority"):
        _require_bytes(field, getattr(request, field), limits.value_bytes, "value_bytes")
    excluded = len(request.exclude_ads)
    _require_count("exclude_ads", excluded, "ads", limits.exclude_ads, "exclude_ads")
    _check_entities(request, limits)
    _check_user(request.user, limits)
    _check_features(request.features, limits, sid_length)
    return Retrieval(
        message=message,
        request_id=request.request_id,
        model=request.model,
        sid_space=request.sid_space,
        max_ads=_max_ads(request.max_ads, limits),
        profile=_profile(request.profile, generation),
        priority=_priority(request.priority),
        exclude_ads=np.array(request.exclude_ads, np.int64),
        exclude={name: np.array(ids.ids, np.int64) for name, ids in request.exclude.items()},
        at_most=dict(request.at_most),
        include_sids=request.include_sids,
        strict=request.strict,
    )


def plain_user(message: bytes) -> dict[str, list[str]]:
    user = RetrieveRequest.FromString(message).user
    return {name: list(given.values) for name, given in user.items()}


def plain_features(message: bytes) -> RequestFeatures:
    features = RetrieveRequest.FromString(message).features
    return RequestFeatures(
        dense={name: list(given.values) for name, given in features.dense.items()},
        categorical=_ids(features.categorical),
        bags=_ids(features.bags),
        sequences={
            name: EventSequence(list(events.sids), list(events.timestamps_ms), _ids(events.side))
            for name, events in features.sequences.items()
        },
    )


def _ids(inputs: Mapping[str, Ids]) -> dict[str, list[int]]:
    return {name: list(given.ids) for name, given in inputs.items()}


def _max_ads(given: int, limits: LimitsConfig) -> int:
    if given > limits.max_ads:
        raise invalid_field("max_ads", f"{given} ads, at most {limits.max_ads} (limits.max_ads)")
    return given or limits.default_max_ads


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


def _check_entities(request: RetrieveRequest, limits: LimitsConfig) -> None:
    _require_count("exclude", len(request.exclude), "names", limits.names, "names")
    ids = len(request.exclude_ads)
    for _, message in _named("exclude", request.exclude, limits):
        ids += len(message.ids)
    what = "ids with those of exclude_ads"
    _require_count("exclude", ids, what, limits.exclude_ads, "exclude_ads")
    _require_count("at_most", len(request.at_most), "names", limits.names, "names")
    for name in sorted(request.at_most):
        _require_bytes("at_most", name, limits.value_bytes, "value_bytes", "a name")


def _check_user(user: Mapping[str, Values], limits: LimitsConfig) -> None:
    _require_count("user", len(user), "names", limits.names, "names")
    together = 0
    for name, message in _named("user", user, limits):
        field, count = f"user.{name}.values", len(message.values)
        _require_count(field, count, "values", limits.values_per_name, "values_per_name")
        together += count
    _require_count("user", together, "values", limits.user_values, "user_values")
    for name, message in sorted(user.items()):
        for value in message.values:
            if _is_longer(value, limits.value_bytes):
                raise invalid_field(
                    f"user.{name}.values",
                    f"a value has {len(value.encode())} bytes, at most {limits.value_bytes} "
                    "(limits.value_bytes)",
                )


def _check_features(features: Features, limits: LimitsConfig, sid_length: int) -> None:
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


def _check_numbers(field: str, message: Numbers, limits: LimitsConfig) -> None:
    count = len(message.values)
    _require_count(field, count, "values", limits.values_per_name, "values_per_name")
    for number in message.values:
        if not isfinite(number):
            raise invalid_field(field, f"{number} is not finite")


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
    for name in sorted(inputs):
        _require_bytes(parent, name, limits.value_bytes, "value_bytes", "a name")
        yield name, inputs[name]


def _require_count(field: str, count: int, what: str, most: int, setting: str) -> None:
    if count > most:
        raise invalid_field(field, f"{count} {what}, at most {most} (limits.{setting})")


def _require_bytes(field: str, text: str, most: int, setting: str, what: str = "it") -> None:
    if _is_longer(text, most):
        size = len(text.encode())
        raise invalid_field(field, f"{what} has {size} bytes, at most {most} (limits.{setting})")


def _is_longer(text: str, most: int) -> bool:
    return len(text.encode()) > most


def _shown(text: str) -> str:
    """A caller's own value, short enough for a status."""
    cut = text[:SHOWN_CHARACTERS]
    return repr(cut) if cut == text else f"{cut!r}..."
