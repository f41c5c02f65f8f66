"""Lists of mode `exact`, larger and odder than a catalogue's: C++ and CUDA against plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, load_ops
from grace.kernels.eligibility.bits import bits_rows_reference
from grace.kernels.eligibility.lists import lists_rows_reference
from grace.kernels.eligibility.on_gpu import eligible_nodes_on_gpu
from grace.kernels.eligibility.tensors import ExactTensors, Predicate, SetPostings
from support.emulated_cuda import emulated_cuda
from support.exact_indexes import (
    attribute_rows_by_nodes,
    random_lists,
    random_postings,
    random_queries,
    random_table,
    random_user_bits,
    set_rows_by_nodes,
)

NATIVE = load_ops(torch.device("cpu"))


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["native", pytest.param("cuda", marks=pytest.mark.subprocess)])
def fast(request: pytest.FixtureRequest) -> Iterator[Ops]:
    """C++, and CUDA on the host, whose first test runs the compiler."""
    if request.param == "native":
        yield NATIVE
    else:
        with emulated_cuda():
            yield replace(REFERENCE, eligible_nodes=eligible_nodes_on_gpu)


def exact_of(index: DecodeIndex) -> ExactTensors:
    assert index.exact is not None
    return index.exact


def with_lists(index: DecodeIndex, **changes: Any) -> DecodeIndex:
    return replace(index, exact=replace(exact_of(index), **changes))


@pytest.mark.parametrize(("rows", "words"), [(1, 1), (2049, 7), (63, 65)])
@pytest.mark.parametrize("requests", [1, 15, 16, 49])
def test_rows_in_any_layout_equal_the_reference(
    fast: Ops, rows: int, words: int, requests: int
) -> None:
    rng = np.random.default_rng(rows + requests)
    table, users = random_table(rng, rows, words), random_user_bits(rng, requests, words)
    expected = bits_rows_reference(table, users)
    for layout in (table, table.t().contiguous().t()):
        assert torch.equal(attribute_rows_by_nodes(fast, layout, users), expected)
    queries = random_queries(rng, requests, 41)
    nobody = queries._replace(
        value_ids=queries.value_ids[:0], value_offsets=torch.zeros_like(queries.value_offsets)
    )
    offsets, empty = torch.zeros(42, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    kinds = torch.zeros(rows, dtype=torch.uint8)
    for postings in (
        *(random_postings(rng, rows, 41, missing) for missing in (False, True)),
        SetPostings(offsets, empty, offsets, empty, kinds, False),
    ):
        for asked in (queries, nobody):
            got = set_rows_by_nodes(fast, postings, asked)
            assert torch.equal(got, lists_rows_reference(postings, asked))


@pytest.mark.parametrize(
    ("fan_outs", "requests", "sets"),
    [
        ((3.0,), 1, 0),
        ((7.0, 11.0, 2.7), 16, 1),
        ((511.0, 1.2), 7, 2),
        ((5.0, 90.0), 17, 3),
        ((2.0, 2.0, 2.0, 2.0, 2.0, 9.0), 33, 9),
    ],
)
def test_nodes_equal_the_reference(
    fast: Ops, fan_outs: tuple[float, ...], requests: int, sets: int
) -> None:
    index, users = random_lists(np.random.default_rng(requests), fan_outs, requests, sets)
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(fast.eligible_nodes(users, index), expected)


@dataclass(frozen=True)
class TorchOnly:
    """A predicate of another kind, which passes every other user whom an own one passes."""

    other: Predicate

    @property
    def ids(self) -> Tensor:
        return self.other.ids.clone()

    def passes(self, users: UserTensors) -> Tensor:
        return self.other.passes(users) & 0x5555


@pytest.mark.parametrize("kinds", [0, 1, 3])
def test_predicates_without_native_code_narrow_what_the_others_pass(fast: Ops, kinds: int) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 19, 1)
    own = exact_of(index).predicates
    torch_only = tuple(TorchOnly(each) for each in own * kinds)
    for predicates in (torch_only, (*own, *torch_only)):
        other = with_lists(index, predicates=predicates)
        expected = REFERENCE.eligible_nodes(users, other)
        assert torch.equal(fast.eligible_nodes(users, other), expected)


def test_lists_and_users_of_a_wrong_type_or_shape_are_refused(fast: Ops) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 3, 1)
    _, others = random_lists(np.random.default_rng(4), (5.0, 3.0), 4, 1)
    lists = exact_of(index)
    for wrong, own, message in (
        (with_lists(index, leaf_rules=lists.leaf_rules.long()), users, "leaf_rules must be contig"),
        (
            with_lists(index, num_rules=lists.num_rules - 1),
            users,
            r"ids of a predicate must be int",
        ),
        (
            index,
            UserTensors.asking(users.bitmask, *others.sets),
            r"offsets of queries must be \[ends\] = \[4\], g",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fast.eligible_nodes(own, wrong)


def test_leaves_without_any_rule_or_with_stopped_ads_only_are_ineligible(fast: Ops) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 3, 0)
    lists = exact_of(index)
    none = with_lists(
        index, leaf_offsets=torch.zeros_like(lists.leaf_offsets), leaf_rules=lists.leaf_rules[:0]
    )
    assert not fast.eligible_nodes(users, none).any()
    assert fast.eligible_nodes(users, index)[0, 0] != 0
    lists.leaf_rules.fill_(lists.num_rules)
    assert not fast.eligible_nodes(users, index).any()
