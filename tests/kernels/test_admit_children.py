"""Admission of children: the reference and C++ against each other, and against raw sets."""

from string import ascii_lowercase

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.index.matchers.node_matchers import bloom_positions, value_hash
from grace.index.targeting.schema import TargetingSchema, TargetSet
from grace.index.trie import NO_NODE
from grace.kernels.decode.admit_children import admit_children_reference, fan_outs
from grace.kernels.decode.admit_children_cpu import admit_children_cpu
from support.decode_cases import (
    DecodeCase,
    assert_same_candidates,
    decode_case,
    every_sid_case,
    random_nodes,
    split_rows,
)
from support.oracle import RawAd, eligible_prefixes
from support.strategies import Case, cases, examples


def all_internal_nodes(made: DecodeCase) -> Tensor:
    """Every internal node for every request, and a dead beam.   [B, internal + 1]"""
    nodes = torch.tensor([*range(made.snapshot.trie.first_leaf), NO_NODE], dtype=torch.int32)
    return nodes.repeat(len(made.rows), 1)


def test_a_value_passes_a_bloom_row_that_has_all_of_its_bits() -> None:
    """Rows have a third of all bits, so some have those of a value that they do not hold."""
    letters = TargetSet("letter", bloom_bits=64, bloom_hashes=4, max_request_values=1)
    schema = TargetingSchema((), (letters,), 0)
    ads = [
        RawAd(i, (i,), 0.0, {"letter": (frozenset(ascii_lowercase[3 * i : 3 * i + 6]), None)})
        for i in range(8)
    ]
    users = tuple({"letter": [letter]} for letter in ascii_lowercase)
    case = Case(schema, (8,), tuple(ads), users)
    made = decode_case(case, MatcherMode.UNION)
    assert made.snapshot.matchers is not None
    rows = made.snapshot.matchers.blooms[0].rows
    stored = [int(row[0]) for row in rows.table[rows.index]]
    for user, found in zip(users, admitted(made, all_internal_nodes(made))[::2], strict=True):
        hashed = value_hash(user["letter"][0], schema.hash_seed)
        bits = sum(1 << bit for bit in {*bloom_positions(hashed, letters)})
        assert [token for token, _ in found] == [
            i for i, row in enumerate(stored) if row & bits == bits
        ]


def admitted(made: DecodeCase, nodes: Tensor) -> list[list[tuple[int, int]]]:
    """Return what the reference and C++ admit for every beam row."""
    expected = admit_children_reference(nodes, made.users, made.index)
    got = admit_children_cpu(nodes, made.users, made.index)
    assert_same_candidates(got, expected)
    assert {got.offsets.dtype, got.tokens.dtype, got.nodes.dtype} == {torch.int32}
    return split_rows(got)


@examples(35)
@given(case=cases(most_ads=40, most_users=3), mode=st.sampled_from(MatcherMode))
def test_no_child_above_an_eligible_ad_is_lost_and_in_mode_exact_no_other_is_admitted(
    case: Case, mode: MatcherMode
) -> None:
    made = decode_case(case, mode)
    nodes = all_internal_nodes(made)
    rows = admitted(made, nodes)
    for request, user in enumerate(case.users):
        wanted: list[set[tuple[int, int]]] = [set() for _ in range(nodes.shape[1])]
        for prefix in eligible_prefixes(case.schema, case.ads, user) - {()}:
            parent, child = (made.snapshot.trie.walk(p) for p in (prefix[:-1], prefix))
            wanted[parent].add((prefix[-1], child))
        own = rows[request * len(wanted) : (request + 1) * len(wanted)]
        for found, least in zip(own, wanted, strict=True):
            assert least <= {*found}
            assert mode is not MatcherMode.EXACT or least == {*found}


def test_any_number_of_threads_admits_the_same() -> None:
    rng, before = np.random.default_rng(4), torch.get_num_threads()
    made = decode_case(every_sid_case(rng, (37, 111), 7))
    nodes = random_nodes(rng, made.snapshot.trie, 7, 63, 0.1)
    assert int(fan_outs(nodes, made.index).sum()) > 2 * 16384  # work for three threads
    expected = admit_children_reference(nodes, made.users, made.index)
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        got = admit_children_cpu(nodes, made.users, made.index)
        torch.set_num_threads(before)
        assert_same_candidates(got, expected)
