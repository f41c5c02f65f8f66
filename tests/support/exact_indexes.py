"""Random lists of mode `exact`, larger and odder than any catalogue: ranges of 0 to 4,096 members.

They are tensors only, with no ads or schema: what is right follows from the plain torch bodies.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.lists import HAS_EXCLUDE, HAS_INCLUDE, ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, Predicate, SetPostings

_LONG_RANGE = 4096


def random_exact_index(
    rng: np.random.Generator,
    fan_outs: Sequence[float],
    words: int,
    sets: int,
    rules: int = 1111,
    rows: int = 333,
    long_leaves: int = 3,
) -> DecodeIndex:
    """`fan_outs` is the mean number of children by level; single nodes have many more.

    `rows` is the number of bitmask rows, and about that of each set's rules.
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
    set_rules = [rows - 7 * place for place in range(sets)]
    ids = [rng.integers(own, size=rules, dtype=np.int32) for own in set_rules]
    columns = torch.from_numpy(np.stack([*ids, np.zeros(rules, np.int32)], axis=1))
    table = random_table(rng, rows, words)
    if sets % 2:
        table = table.t().contiguous().t()  # by word, as on a GPU
    bitmasks = torch.from_numpy(rng.integers(rows, size=rules, dtype=np.int32))
    predicates: list[Predicate] = [BitsPredicate(bitmasks, table)]
    predicates += [
        ListsPredicate(columns[:, place], 1 + place, random_postings(rng, own, 29, place % 2 == 1))
        for place, own in enumerate(set_rules)
    ]
    return DecodeIndex(
        vocab_sizes=(max(int(own.max()) for own in counts),) * len(fan_outs),
        first_leaf=starts[-2],
        node_offsets=torch.from_numpy(node_offsets),
        csr_tokens=torch.zeros(starts[-1] - 1, dtype=torch.int32),
        exact=ExactTensors(
            tuple(predicates),
            torch.from_numpy(leaf_offsets),
            torch.from_numpy(leaf_rules),
            rules,
            tuple(starts),
        ),
    )


def random_lists(
    rng: np.random.Generator,
    fan_outs: Sequence[float],
    requests: int,
    sets: int,
    words: int = 3,
    rows: int = 333,
) -> tuple[DecodeIndex, UserTensors]:
    """Return an index, and users of it."""
    index = random_exact_index(rng, fan_outs, words, sets, max(1111, rows), rows)
    return index, random_exact_users(rng, requests, words, sets)


def random_exact_users(
    rng: np.random.Generator, requests: int, words: int, sets: int
) -> UserTensors:
    bitmask = random_user_bits(rng, requests, words)
    return UserTensors.asking(bitmask, *(random_queries(rng, requests, 29) for _ in range(sets)))


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
    rng: np.random.Generator, rules: int, values: int, missing_passes: bool
) -> SetPostings:
    """Value 0 is in every list, value 1 in none. Rules have both lists, one or none."""
    include = rng.random((values, rules)) < rng.random((values, 1)) ** 3
    exclude = rng.random((values, rules)) < 0.2 * rng.random((values, 1)) ** 3
    include[:, rng.random(rules) < 0.3] = False
    exclude[:, rng.random(rules) < 0.5] = False
    for named in (include, exclude):
        named[0, named.any(axis=0)] = True
        named[1] = False
    kinds = include.any(axis=0) * HAS_INCLUDE | exclude.any(axis=0) * HAS_EXCLUDE
    return SetPostings(
        *_lists(include), *_lists(exclude), torch.from_numpy(kinds.astype(np.uint8)), missing_passes
    )


def random_queries(rng: np.random.Generator, requests: int, values: int) -> AskedLists[Tensor]:
    """Every third request has no value, others have values that no rule names, and no other."""
    known, asked = [], []
    for request in range(requests):
        count = 0 if request % 3 == 1 else int(rng.integers(values))
        known.append(np.sort(rng.choice(values, size=count, replace=False)))
        asked.append(count + (int(rng.integers(3)) if request % 3 else 0))
    ids = np.concatenate([np.zeros(0, np.int32), *known]).astype(np.int32)
    return AskedLists(
        torch.from_numpy(_offsets(np.array(asked))),
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
