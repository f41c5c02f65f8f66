"""Random lists of mode `exact`, larger and odder than any catalogue: ranges of 0 to 4,096 members.

They are tensors only, with no ads or schema: what is right follows from the plain torch bodies.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels import DecodeIndex, Ops, UserTensors
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
    long_leaves: int = 3,
) -> DecodeIndex:
    """`fan_outs` is the mean number of children by level; single nodes have many more."""
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
    rows, set_rules = 333, [77 + place for place in range(sets)]
    ids = [rng.integers(own, size=rules, dtype=np.int32) for own in set_rules]
    columns = torch.from_numpy(np.stack([*ids, np.zeros(rules, np.int32)], axis=1))
    predicates: list[Predicate] = [
        BitsPredicate(
            torch.from_numpy(rng.integers(rows, size=rules, dtype=np.int32)),
            random_table(rng, rows, words),
        )
    ]
    predicates += [
        ListsPredicate(columns[:, place], 1 + place, random_postings(rng, own, 29, place % 2 == 1))
        for place, own in enumerate(set_rules)
    ]
    return DecodeIndex(
        vocab_sizes=(max(int(own.max()) for own in counts),) * len(fan_outs),
        first_leaf=starts[-2],
        node_offsets=torch.from_numpy(node_offsets),
        csr_tokens=torch.zeros(starts[-1] - 1, dtype=torch.int32),
        bitmask_index=None,
        bitmask_table=None,
        blooms=(),
        exact=ExactTensors(
            tuple(predicates),
            torch.from_numpy(leaf_offsets),
            torch.from_numpy(leaf_rules),
            rules,
            tuple(starts),
        ),
    )


def random_lists(
    rng: np.random.Generator, fan_outs: Sequence[float], requests: int, sets: int, words: int = 3
) -> tuple[DecodeIndex, UserTensors]:
    """Return an index, and users of it."""
    index = random_exact_index(rng, fan_outs, words, sets)
    return index, random_exact_users(rng, requests, words, sets)


def index_of_rows(predicate: Predicate, rows: int) -> DecodeIndex:
    """Return an index with a leaf for each row of a predicate: their masks are those of the rows.

    The predicate's ids must be 0, 1, .. rows - 1.
    """
    device = predicate.ids.device
    leaf_rules = torch.arange(rows, dtype=torch.int32, device=device)
    leaf_offsets = torch.arange(rows + 1, dtype=torch.int32, device=device)
    return DecodeIndex(
        vocab_sizes=(rows,),
        first_leaf=1,
        node_offsets=torch.tensor([0, rows], dtype=torch.int32, device=device),
        csr_tokens=leaf_rules,
        bitmask_index=None,
        bitmask_table=None,
        blooms=(),
        exact=ExactTensors((predicate,), leaf_offsets, leaf_rules, rows, (0, 1, rows + 1)),
    )


def attribute_rows_by_nodes(ops: Ops, table: Tensor, bitmask: Tensor) -> Tensor:
    """Return the masks of a table's rows, as `eligible_nodes` makes them."""
    ids = torch.arange(len(table), dtype=torch.int32, device=table.device)
    index = index_of_rows(BitsPredicate(ids, table), len(table))
    return ops.eligible_nodes(UserTensors.asking(bitmask), index)[:, 1:]


def set_rows_by_nodes(ops: Ops, postings: SetPostings, queries: AskedLists[Tensor]) -> Tensor:
    """Return the masks of a set's rules, as `eligible_nodes` makes them."""
    rules, requests = len(postings.kinds), len(queries.offsets) - 1
    ids = torch.arange(rules, dtype=torch.int32, device=postings.kinds.device)
    index = index_of_rows(ListsPredicate(ids, 1, postings), rules)
    bitmask = torch.zeros(requests, 1, dtype=torch.int64, device=ids.device)
    return ops.eligible_nodes(UserTensors.asking(bitmask, queries), index)[:, 1:]


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
        torch.zeros(sum(asked), dtype=torch.int64),
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
