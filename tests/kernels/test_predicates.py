"""Sets with groups, ranges, flights and filters of properties against the plain oracle.

Rules and requests are encoded by hand, and each rule has a leaf: this needs no build and no reader.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.index.forms.bits import AskedBits
from grace.index.forms.interval import AskedNumber
from grace.index.forms.lists import AskedLists
from grace.index.forms.properties import ASKS_ANY, ASKS_NONE, BARE_PASSES, AskedFilters
from grace.index.matchers.exact_lists import exact_lists
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import Lists, NumberRows, SetRules, TargetingRules, ValueRows
from grace.index.targeting.schema import Flight, Property, Range, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.index.users.values import InternedValues
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, load_ops
from grace.kernels.eligibility.predicates import exact_tensors
from grace.kernels.eligibility.tensors import has_bit
from support.decode_cases import CPU
from support.oracle import NO_RULE, OPEN, Asked, RawFilter, RawUser, Rules, failure_of
from support.strategies import examples

SCHEMA = TargetingSchema(
    attributes=(),
    sets=(TargetSet("s", 64, 1, 9), TargetSet("t", 64, 1, 9, missing_passes_exclude=True)),
    hash_seed=7,
    ranges=(Range("r"), Range("open", missing_passes=True)),
    flights=(Flight("f"),),
    properties=(Property("p"), Property("q")),
)
SETS, RANGES, FLIGHTS, PROPERTIES = ("s", "t"), ("r", "open"), ("f",), ("p", "q")
VALUES = "abcdef"  # requests also name others
INTERNED = tuple(InternedValues.of(VALUES) for _ in range(4))
Request = tuple[dict[str, Any], Asked]
Ids = npt.NDArray[np.int32]
T = TypeVar("T")
Row = TypeVar("Row", bound=Hashable)


def by_name(names: Sequence[str], values: st.SearchStrategy[T]) -> st.SearchStrategy[dict[str, T]]:
    return st.dictionaries(st.sampled_from(names), values)


def values_of(least: int, most: int) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(VALUES), min_size=least, max_size=most)


ends = st.none() | st.integers(-3, 3)
rules = st.builds(
    lambda groups, **others: {
        **{f"{name}_all": each for name, each in groups.items()},
        **{name: rule for each in others.values() for name, rule in each.items()},
    },
    rules=by_name(SETS, st.tuples(*2 * [st.none() | values_of(1, 3)])),
    groups=by_name(SETS, st.lists(values_of(1, 2), max_size=3).map(tuple)),
    intervals=by_name(RANGES + FLIGHTS, st.tuples(ends, ends)),
    properties=by_name(PROPERTIES, values_of(0, 3)),
)
filters = st.builds(
    RawFilter, any_of=values_of(0, 3), none_of=values_of(0, 3), unknown=st.none() | st.booleans()
)
users = st.builds(
    lambda sets, numbers: {**sets, **numbers},
    by_name(SETS, st.lists(st.sampled_from(VALUES + "xyz"), max_size=4)),
    by_name(RANGES, st.integers(-4, 4) | st.floats(-4, 4)),
)
asked_besides = st.builds(Asked, at=st.integers(-4, 4), filters=by_name(PROPERTIES, filters))


@examples(150)
@given(
    rules=st.lists(rules, min_size=1, max_size=9),
    requests=st.lists(st.tuples(users, asked_besides), min_size=1, max_size=5),
    size=st.sampled_from((1, 15, 16, 17, 33)),
)
def test_a_request_passes_a_rule_if_and_only_if_the_oracle_says_so(
    rules: list[Rules], requests: list[Request], size: int
) -> None:
    batch = [requests[place % len(requests)] for place in range(size)]
    index, tensors = index_of(rules), tensors_of(batch)
    for ops in (REFERENCE, load_ops(CPU)):
        found = ops.eligible_nodes(tensors, index)
        for request, (user, asked) in enumerate(batch):
            leaves = has_bit(found, request)[1:].tolist()
            asking = RawUser(user)
            asking.asked = asked
            expected = [failure_of(SCHEMA, rule, asking) is None for rule in rules]
            assert leaves == expected


def test_components_are_left_out_where_they_limit_nobody_or_no_request_asks() -> None:
    limited = {"r": (1, None), "open": (1, None)}
    assert components_in(index_of([{}])) == [6, 7]  # the properties
    assert components_in(index_of([limited, {}])) == [3, 4, 6, 7]
    asking = ({"r": 3, "open": 2.5}, Asked(filters={"q": RawFilter(any_of=frozenset("a"))}))
    assert tensors_of([({}, Asked())]).unasked == {4, 6, 7}
    assert tensors_of([({}, Asked()), asking]).unasked == {6}


def components_in(index: DecodeIndex) -> list[int]:
    assert index.exact is not None
    return [getattr(each, "component", 0) for each in index.exact.predicates]


def index_of(rules: Sequence[Rules]) -> DecodeIndex:
    """Return an index of a root and a leaf for each rule."""
    bits = NumberRows(np.full((1, 1), 2**64 - 1, np.uint64))
    made: list[tuple[Any, Ids]] = [(bits, np.zeros(len(rules), np.int32))]
    for name in SETS:
        raw = [(rule.get(name, NO_RULE), rule.get(f"{name}_all", ())) for rule in rules]
        made.append(interned(raw, set_rules))
    for name in RANGES + FLIGHTS:
        numbers = [rule.get(name, OPEN) for rule in rules]
        made.append(interned(numbers, last_milliseconds if name in FLIGHTS else number_rows))
    for name in PROPERTIES:
        values = [rule.get(name, frozenset()) for rule in rules]
        made.append(interned(values, lambda rows: ValueRows(*lists(rows))))
    parts, ids = zip(*made, strict=True)
    targeting = TargetingRules(np.stack(ids, axis=1), parts, lists([]))
    each = np.arange(len(rules), dtype=np.int32)
    count = np.arange(len(rules) + 1)
    ads = SidToAds(count, count[1:], each, np.zeros(len(rules), np.float32), each)
    starts = SimpleNamespace(level_starts=(0, 1, 1 + len(rules)))
    made_by_hand = SimpleNamespace(schema=SCHEMA, rules=targeting, set_values=INTERNED, trie=starts)
    found = exact_lists(ads, targeting, (len(VALUES),) * len(INTERNED), 1)
    return DecodeIndex(
        vocab_sizes=(len(rules),),
        first_leaf=1,
        node_offsets=torch.tensor([0, len(rules)]).int(),
        csr_tokens=torch.from_numpy(each),
        exact=exact_tensors(cast(Snapshot, made_by_hand), found, CPU),
    )


def interned(raw: Sequence[Row], encode: Callable[[list[Row]], Any]) -> tuple[Any, Ids]:
    """Return distinct rows, and the row of each rule."""
    distinct = list(dict.fromkeys(raw))
    return encode(distinct), np.array([distinct.index(each) for each in raw], np.int32)


def set_rules(rows: Sequence[Any]) -> SetRules:
    groups = [groups for _, groups in rows]
    return SetRules(
        *lists(include or () for (include, _), _ in rows),
        *lists(exclude or () for (_, exclude), _ in rows),
        np.array([0, *accumulate(map(len, groups))], np.int64),
        *lists(chain.from_iterable(groups)),
    )


def number_rows(rows: Sequence[Any]) -> NumberRows:
    table = [
        (-np.inf if low is None else low, np.inf if high is None else high) for low, high in rows
    ]
    return NumberRows(np.array(table, np.float64))


def last_milliseconds(rows: Sequence[Any]) -> NumberRows:
    """A flight's end is exclusive."""
    return NumberRows(number_rows(rows).table - [0, 1])


def lists(rows: Iterable[Iterable[str]]) -> Lists:
    """Values that no rule names are left out."""
    ids = [sorted({VALUES.index(value) for value in row if value in VALUES}) for row in rows]
    offsets = np.array([0, *accumulate(map(len, ids))], np.int64)
    return Lists(offsets, np.array([*chain.from_iterable(ids)], np.int32))


def tensors_of(batch: Sequence[Request]) -> UserTensors:
    rows = UserRows(UserEncoder(SCHEMA, INTERNED), tuple(asked_in(batch)), ((),) * len(batch))
    return UserTensors.of(rows, CPU)


def asked_in(batch: Sequence[Request]) -> Iterator[Any]:
    yield AskedBits(np.zeros((len(batch), 1), np.uint64))
    for name in SETS:
        values = [user.get(name, ()) for user, _ in batch]
        offsets, ids = lists(values)
        distinct = np.array([0, *accumulate(len(set(own)) for own in values)], np.int32)
        yield AskedLists(distinct, offsets.astype(np.int32), ids, np.zeros(len(ids), np.uint64))
    for name in RANGES:
        yield AskedNumber(np.array([user.get(name, np.nan) for user, _ in batch], np.float64))
    yield AskedNumber(np.array([asked.at for _, asked in batch], np.float64))
    for name in PROPERTIES:
        yield filters_of([asked.filters.get(name) for _, asked in batch])


def filters_of(filters: Sequence[RawFilter | None]) -> AskedFilters[Any]:
    any_offsets, any_ids = lists(getattr(each, "any_of", ()) for each in filters)
    none_offsets, none_ids = lists(getattr(each, "none_of", ()) for each in filters)
    kinds = np.array([0 if each is None else kind_of(each) for each in filters], np.uint8)
    return AskedFilters(
        kinds, any_offsets.astype("i4"), any_ids, none_offsets.astype("i4"), none_ids
    )


def kind_of(asked: RawFilter) -> int:
    """A filter without any value may still block ads without one: it asks for none of no values."""
    bare = asked.unknown if asked.unknown is not None else not asked.any_of
    return (ASKS_ANY if asked.any_of else 0) | (BARE_PASSES if bare else ASKS_NONE)
