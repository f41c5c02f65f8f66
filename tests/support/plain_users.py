"""The plain encoder of what requests ask, to rows: C++ is compared with it."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import RequestError
from grace.index.forms.bits import AskedBits
from grace.index.forms.component import OPEN_EXCLUDE, OPEN_INCLUDE
from grace.index.forms.interval import AskedNumber
from grace.index.forms.lists import AskedLists
from grace.index.forms.properties import AskedFilters
from grace.index.matchers.node_matchers import value_hash
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import Filter, RetrieveRequest, Values
from support.arrays import assert_same_arrays
from support.oracle import Asked, RawFilter, clock, filter_passes

Fault = tuple[str, str]
NOTHING = Values()


def assert_same_rows(got: UserRows, expected: UserRows) -> None:
    assert got.encoder is expected.encoder
    assert got.ignored == expected.ignored
    assert_same_arrays(got.asked, expected.asked, "asked")


def plain_rows(encoder: UserEncoder, requests: Sequence[RetrieveRequest], now: int = 0) -> UserRows:
    """What `encoder.read` makes. Raises RequestError, naming the field."""
    schema, interned = encoder.schema, iter(encoder.set_values)
    for request in requests:
        for path, fault in _faults(schema, request):
            raise RequestError(path, fault)
    rows = [_row(schema, each, now).to_bytes(schema.words * 8, "little") for each in requests]
    bitmask = np.frombuffer(b"".join(rows), "<u8").astype(np.uint64)
    asked: list[Any] = [AskedBits(bitmask.reshape(len(requests), schema.words))]
    for each in schema.sets:
        values = [{*request.user.get(each.name, NOTHING).values} for request in requests]
        asked.append(_queries(schema, each, next(interned), values))
    for target in schema.ranges:
        numbers = [request.user.get(target.name, NOTHING) for request in requests]
        present = [each.number if each.HasField("number") else nan for each in numbers]
        asked.append(AskedNumber(np.array(present, np.float64)))
    times = np.array([request.at or now for request in requests], np.float64)
    asked += [AskedNumber(times)] * len(schema.flights)
    for prop in schema.properties:
        filters = [request.filters.get(prop.name) for request in requests]
        asked.append(_filters(next(interned), filters))
    return UserRows(encoder, tuple(asked), tuple(_ignored(schema, each) for each in requests))


def _ignored(schema: TargetingSchema, request: RetrieveRequest) -> tuple[str, ...]:
    filters = request.filters.keys() - {each.name for each in schema.properties}
    return tuple(
        sorted([*(request.user.keys() - {*schema.user_names}), *(f"filters.{n}" for n in filters)])
    )


def _faults(schema: TargetingSchema, request: RetrieveRequest) -> Iterator[Fault]:
    """In the schema's order; names that it does not have come last, sorted."""
    most = {each.name: each.max_request_values for each in schema.sets}
    ranges = {each.name for each in schema.ranges}
    user, filters = request.user, request.filters
    for name in filter(user.__contains__, schema.user_names):
        given, path = user[name], f"user.{name}"
        if name in ranges:
            if given.values:
                yield f"{path}.values", f"{name} is a range; send {path}.number"
            if not isfinite(given.number):
                yield f"{path}.number", f"{given.number} is not finite"
            continue
        if given.HasField("number"):
            yield f"{path}.number", f"{name} takes values; send {path}.values"
        yield from _reserved(f"{path}.values", given.values)
        if (count := len(set(given.values))) > most.get(name, count):
            fault = f"{count} distinct values, at most {most[name]} are allowed"
            setting = "max_request_values in the targeting schema"
            yield f"{path}.values", f"{fault} ({setting}); send fewer"
    properties = [each.name for each in schema.properties if each.name in filters]
    for name in properties:
        yield from _reserved_in_filter(name, filters[name])
    for name in sorted(user.keys() - {*schema.user_names}):
        yield from _reserved(f"user.{name}.values", user[name].values)
    for name in sorted(filters.keys() - {*properties}):
        yield from _reserved_in_filter(name, filters[name])


def _reserved_in_filter(name: str, asked: Filter) -> Iterator[Fault]:
    yield from _reserved(f"filters.{name}.any_of", asked.any_of)
    yield from _reserved(f"filters.{name}.none_of", asked.none_of)


def _reserved(path: str, values: Iterable[str]) -> Iterator[Fault]:
    if RESERVED_VALUE in values:
        yield path, f"{RESERVED_VALUE!r} is reserved; name values, or send none"


def _row(schema: TargetingSchema, request: RetrieveRequest, now: int) -> int:
    """The user's bits as one number."""
    row = 0
    for attribute, first in schema.places:
        bit_of = {value: first + i for i, value in enumerate(attribute.values)}
        other = first + len(attribute.values)
        values = request.user.get(attribute.name, NOTHING).values
        for value in values or _stand_in(attribute, request, now):
            row |= 1 << bit_of.get(value, other)
    return row


def _stand_in(attribute: Attribute, request: RetrieveRequest, now: int) -> tuple[str, ...]:
    if attribute.clock is not None:
        asked = Asked(request.at or now, request.utc_offset_minutes)
        return (str(clock(attribute.clock, asked)),)
    return ("",) if attribute.missing is None else (attribute.missing,)  # "" is `other`


def _queries(
    schema: TargetingSchema,
    target_set: TargetSet,
    interned: InternedValues,
    users: Sequence[set[str]],
) -> AskedLists[npt.NDArray[Any]]:
    passes = [OPEN_EXCLUDE * bool(each or target_set.missing_passes_exclude) for each in users]
    ends, ids = _ids(interned, users)
    hashes = [value_hash(interned[v], schema.hash_seed) for v in ids.tolist()]
    return AskedLists(np.array(passes, np.uint8), ends, ids, np.array(hashes, np.uint64))


def _filters(
    interned: InternedValues, filters: Sequence[Filter | None]
) -> AskedFilters[npt.NDArray[Any]]:
    some = [each or Filter() for each in filters]
    return AskedFilters(
        np.array([_open(each) for each in some], np.uint8),
        *_ids(interned, [each.any_of for each in some]),
        *_ids(interned, [each.none_of for each in some]),
    )


def _open(asked: Filter) -> int:
    unknown = {Filter.UNKNOWN_UNSPECIFIED: None, Filter.PASSES: True, Filter.BLOCKED: False}
    raw = RawFilter(frozenset(asked.any_of), frozenset(asked.none_of), unknown[asked.unknown])
    bare = OPEN_EXCLUDE if filter_passes(raw, frozenset()) else 0
    return bare if asked.any_of else bare | OPEN_INCLUDE


def _ids(
    interned: InternedValues, lists: Sequence[Iterable[str]]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The distinct known values of each list, ascending: where each list ends, and the ids."""
    known = interned.ids
    ids = [sorted({known[value] for value in values if value in known}) for values in lists]
    ends = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return ends, np.array([each for some in ids for each in some], np.int32)
