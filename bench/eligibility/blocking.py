"""Flights, a range and a property for the catalogue, and requests for which these block ads.

Each rule gets a random start of a flight, minimum and category, out of equally many of each.
The time, the number and the filter of a request each pass the same share of these.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import Lists, NumberRows, ValueRows
from grace.index.targeting.schema import Flight, Property, Range
from grace.index.users.user_rows import UserAttributes, request_of_user
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest

PASSING = {"third": 2 / 3, "nine-tenths": 1 / 10}
"""The share of ads that flights and filters let pass, by the name of the share that they block."""

_ROWS = 1_000  # of each component
_HOUR = 3_600_000
_SEED = 17


def with_flights_and_filters(facts: Snapshot) -> Snapshot:
    numbers = np.arange(_ROWS, dtype=np.int32)
    least = np.stack([numbers, np.full(_ROWS, np.inf)], axis=1)
    parts = (
        NumberRows(least),
        NumberRows(least * _HOUR),
        ValueRows(Lists(np.arange(_ROWS + 1), numbers)),
    )
    size = (facts.rules.num_rules, len(parts))
    drawn = np.random.default_rng(_SEED).integers(_ROWS, size=size, dtype=np.int32)
    return replace(
        facts,
        schema=replace(
            facts.schema,
            ranges=(Range("spend"),),
            flights=(Flight("flight"),),
            properties=(Property("category"),),
        ),
        rules=replace(
            facts.rules,
            rows=np.concatenate([facts.rules.rows, drawn], axis=1),
            parts=(*facts.rules.parts, *parts),
        ),
        set_values=(*facts.set_values, InternedValues.of(_categories(_ROWS))),
    )


def asking(user: UserAttributes, name: str) -> RetrieveRequest:
    """Return a user's request, which passes the rows below one number of each component."""
    rows = _passing_rows(name)
    request = request_of_user(user, at=rows * _HOUR - 1)
    request.user["spend"].number = rows - 1
    request.filters["category"].any_of.extend(_categories(rows))
    return request


def passing_pct(snapshot: Snapshot, name: str) -> float:
    passes = np.all(snapshot.rules.rows[:, -3:] < _passing_rows(name), axis=1)
    return round(100 * float(passes[snapshot.ads.ad_rule].mean()), 2)


def _passing_rows(name: str) -> int:
    return round(_ROWS * float(PASSING[name] ** (1 / 3)))


def _categories(count: int) -> Iterator[str]:
    return (f"category-{number:03}" for number in range(count))
