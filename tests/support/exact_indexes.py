"""Random lists of mode `exact`, larger and odder than any catalogue: ranges of 0 to 4,096 members.

They are tensors only, with no ads or schema: what is right follows from the plain torch bodies.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.index.forms.bits import AskedBits
from grace.index.forms.component import OPEN_EXCLUDE, OPEN_INCLUDE
from grace.index.forms.interval import AskedNumber
from grace.index.forms.lists import AskedLists
from grace.index.forms.properties import AskedFilters
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.interval import IntervalPredicate
from grace.kernels.eligibility.lists import HAS_EXCLUDE, HAS_INCLUDE, ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, PostingTensors, Predicate

_LONG_RANGE = 4096
_VALUES = 29  # of a set or property


def random_exact_index(
    rng: np.random.Generator,
    fan_outs: Sequence[float],
    words: int,
    sets: int,
    rules: int = 1111,
    rows: int = 333,
    long_leaves: int = 3,
    intervals: int = 0,
    properties: int = 0,
) -> DecodeIndex:
    """`fan_outs` is the mean number of children by level; single nodes have many more.

    `rows` is the number of bitmask rows, and about that of each other component's.
    """
    counts, starts, level = [], [0, 1], 1
    for mean in fan_outs:
        children = _skewed(rng, level, mean)
        counts.append(children)
        level = int(children.sum())
        starts.append(starts[-1] + level)
    node_offsets = _offsets(np.concatenate(counts))
    pairs = _skewed(rng, level, 1.3)
    pairs[rng.choice(level, size=min(level, long_leaves), replace=False)] = _LONG_RANGE
    pairs[rng.random(level) < 0.1] = 0
    leaf_offsets = _offsets(pairs)
    # Most ads are stopped, so that a single member of a long range decides it.
    leaf_rules = rng.integers(rules, size=int(leaf_offsets[-1]), dtype=np.int32)
    alive = 1 / np.repeat(np.maximum(pairs, 16), pairs)
    leaf_rules[rng.random(len(leaf_rules)) >= alive] = rules
    others = [rows - 7 * place for place in range(sets + intervals + properties)]
    ids = [rng.integers(own, size=rules, dtype=np.int32) for own in others]
    columns = torch.from_numpy(np.stack([*ids, np.zeros(rules, np.int32)], axis=1))
    table = random_table(rng, rows, words)
    if sets % 2:
        table = table.t().contiguous().t()  # by word, as on a GPU
    bitmasks = torch.from_numpy(rng.integers(rows, size=rules, dtype=np.int32))
    predicates: list[Predicate] = [BitsPredicate(bitmasks, table)]
    for place, own in enumerate(others):
        own_ids, odd = columns[:, place], place % 2 == 1
        if sets <= place < sets + intervals:
            found = random_intervals(rng, own)
            predicates.append(IntervalPredicate(own_ids, 1 + place, found, odd))
            continue
        if place < sets:
            lists = random_postings(rng, own, _VALUES, groups=place % 3 * own // 7)
        else:
            lists = random_property(rng, own, _VALUES)
        predicates.append(ListsPredicate(own_ids, 1 + place, lists))
    of_leaves = torch.from_numpy(leaf_offsets), torch.from_numpy(leaf_rules)
    return DecodeIndex(
        vocab_sizes=(max(int(own.max()) for own in counts),) * len(fan_outs),
        first_leaf=starts[-2],
        node_offsets=torch.from_numpy(node_offsets),
        csr_tokens=torch.zeros(starts[-1] - 1, dtype=torch.int32),
        exact=ExactTensors(tuple(predicates), *of_leaves, rules, tuple(starts)),
    )


def random_lists(
    rng: np.random.Generator,
    fan_outs: Sequence[float],
    requests: int,
    sets: int,
    words: int = 3,
    rows: int = 333,
    intervals: int = 0,
    properties: int = 0,
) -> tuple[DecodeIndex, UserTensors]:
    """Return an index, and users of it."""
    others = {"intervals": intervals, "properties": properties}
    index = random_exact_index(rng, fan_outs, words, sets, max(1111, rows), rows, **others)
    return index, random_exact_users(rng, requests, words, sets, **others)


def random_exact_users(
    rng: np.random.Generator,
    requests: int,
    words: int,
    sets: int,
    intervals: int = 0,
    properties: int = 0,
) -> UserTensors:
    """Every third property is one about which no request asks."""
    filters = [
        random_filters(rng, requests, _VALUES, asks=place % 3 != 0) for place in range(properties)
    ]
    asked = (
        AskedBits(random_user_bits(rng, requests, words)),
        *(random_queries(rng, requests, _VALUES, place % 2 == 1) for place in range(sets)),
        *(random_numbers(rng, requests) for _ in range(intervals)),
        *filters,
    )
    first = len(asked) - properties
    return UserTensors(asked, unasked=frozenset(range(first, len(asked), 3)))


def random_table(rng: np.random.Generator, rows: int, words: int) -> Tensor:
    """Rows with most bits, some with all, some with none."""
    bits = rng.integers(1 << 64, size=(3, rows, words), dtype=np.uint64)
    table = bits[0] | bits[1] | bits[2]
    table[::7], table[3::11] = np.uint64(2**64 - 1), 0
    return torch.from_numpy(table.view(np.int64))


def random_user_bits(rng: np.random.Generator, requests: int, words: int) -> Tensor:
    """A few bits in some words, equal ones for several users; the words 1, 4, .. have none."""
    kinds = np.uint64(1) << rng.integers(64, size=(5, words), dtype=np.uint64)
    users = kinds[rng.integers(5, size=requests)]
    users |= np.uint64(1) << rng.integers(64, size=users.shape, dtype=np.uint64)
    users[:, 1::3] = 0
    users[rng.random(users.shape) < 0.3] = 0
    return torch.from_numpy(users.view(np.int64))


def random_postings(
    rng: np.random.Generator, rules: int, values: int, groups: int
) -> PostingTensors:
    """Value 0 is in every list, value 1 in none. Rules have both lists, one or none, and groups."""
    include = rng.random((values, rules + groups)) < rng.random((values, 1)) ** 3
    exclude = rng.random((values, rules)) < 0.2 * rng.random((values, 1)) ** 3
    include[:, :rules][:, rng.random(rules) < 0.3] = False
    exclude[:, rng.random(rules) < 0.5] = False
    for named in (include, exclude):
        named[0, named.any(axis=0)] = True
        named[1] = False
    own = include[:, :rules].any(axis=0) * HAS_INCLUDE | exclude.any(axis=0) * HAS_EXCLUDE
    kinds = np.append(own, np.full(groups, HAS_INCLUDE))
    firsts = np.flatnonzero(rng.random(groups) < 0.7) if groups else np.zeros(0, np.int64)
    firsts[:1] = 0
    grouped = np.sort(rng.choice(rules, size=len(firsts), replace=False))
    return PostingTensors(
        *_lists(include),
        *_lists(exclude),
        torch.from_numpy(kinds.astype(np.uint8)),
        torch.from_numpy(grouped.astype(np.int32)),
        torch.from_numpy((rules + np.append(firsts, groups)).astype(np.int32)),
    )


def random_property(rng: np.random.Generator, rows: int, values: int) -> PostingTensors:
    """Value 0 is in every third row, value 1 in none; some rows have no value."""
    named = rng.random((values, rows)) < 0.3 * rng.random((values, 1)) ** 2
    named[0, ::3], named[1] = True, False
    kinds = np.where(named.any(axis=0), HAS_INCLUDE, HAS_EXCLUDE).astype(np.uint8)
    none = torch.zeros(0, dtype=torch.int32)
    lists = _lists(named)
    return PostingTensors(*lists, *lists, torch.from_numpy(kinds), none, torch.tensor([rows]).int())


def random_intervals(rng: np.random.Generator, rows: int) -> Tensor:
    """Some rows have one end, some none."""
    table = np.sort(rng.integers(-9, 9, size=(rows, 2)) / 2)
    table[rng.random(rows) < 0.3, 0] = -np.inf
    table[rng.random(rows) < 0.3, 1] = np.inf
    return torch.from_numpy(table)


def random_numbers(rng: np.random.Generator, requests: int) -> AskedNumber[Tensor]:
    """Every third request has no number."""
    numbers = rng.integers(-10, 10, size=requests) / 2
    numbers[1::3] = np.nan
    return AskedNumber(torch.from_numpy(numbers))


def random_filters(
    rng: np.random.Generator, requests: int, values: int, *, asks: bool
) -> AskedFilters[Tensor]:
    opens = rng.integers(4, size=requests) if asks else np.full(requests, 3)
    named = []
    for may_ask in ((opens & OPEN_INCLUDE) == 0, np.full(requests, asks)):
        counts = np.where(may_ask, rng.integers(4, size=requests), 0)
        ids = [np.sort(rng.choice(values, size=count, replace=False)) for count in counts]
        joined = np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32)
        named += [torch.from_numpy(_offsets(counts)), torch.from_numpy(joined)]
    return AskedFilters(torch.from_numpy(opens.astype(np.uint8)), *named)


def random_queries(
    rng: np.random.Generator, requests: int, values: int, missing_passes_exclude: bool
) -> AskedLists[Tensor]:
    """Every third request has no value, others have values that no rule names, and no other."""
    known, opens = [], []
    for request in range(requests):
        count = 0 if request % 3 == 1 else int(rng.integers(values))
        known.append(np.sort(rng.choice(values, size=count, replace=False)))
        asked = count + (int(rng.integers(3)) if request % 3 else 0)
        opens.append(OPEN_EXCLUDE if asked or missing_passes_exclude else 0)
    ids = np.concatenate([np.zeros(0, np.int32), *known]).astype(np.int32)
    return AskedLists(
        torch.tensor(opens, dtype=torch.uint8),
        torch.from_numpy(_offsets(np.array([len(own) for own in known]))),
        torch.from_numpy(ids),
        torch.zeros(len(ids), dtype=torch.int64),
    )


def _lists(named: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    values, rules = named.nonzero()
    counts = np.bincount(values, minlength=len(named))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return torch.from_numpy(offsets), torch.from_numpy(rules.astype(np.int32))


def _skewed(rng: np.random.Generator, count: int, mean: float) -> npt.NDArray[np.int64]:
    drawn = mean * rng.lognormal(-0.5, 1.0, size=count)
    return np.maximum(1, drawn.astype(np.int64) + (rng.random(count) < drawn % 1))


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
