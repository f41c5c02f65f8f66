"""Admission of children: the reference and C++ against plain integers, and against raw sets."""

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.index.matchers.bloom import bloom_positions, star_hash
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
from support.plain_partitions import rows_of_entry
from support.strategies import Case, cases, examples


def as_integer(words: npt.NDArray[np.uint64]) -> int:
    return int.from_bytes(words.tobytes(), "little")


def eligible_of(made: DecodeCase, request: int) -> set[int]:
    """Return the nodes above an ad that the user may see."""
    case, user = made.case, made.case.users[request]
    return {made.snapshot.trie.walk(p) for p in eligible_prefixes(case.schema, case.ads, user)}


def passes(made: DecodeCase, request: int, entry: int) -> bool:
    """The tests of one child entry on Python integers."""
    schema, matchers = made.snapshot.schema, made.snapshot.matchers
    if made.snapshot.mode is MatcherMode.EXACT:
        return entry + 1 in eligible_of(made, request)
    if matchers is None:
        return True
    user, trie = as_integer(made.rows.bitmask[request]), made.snapshot.trie
    ids = rows_of_entry(trie, matchers.bitmask, entry)
    if not any(as_integer(matchers.bitmask.table[i]) & user == user for i in ids):
        return False
    for target_set, bloom, queries in zip(
        schema.sets, matchers.blooms, made.rows.sets, strict=True
    ):
        rows = [as_integer(bloom.rows.table[i]) for i in rows_of_entry(trie, bloom.rows, entry)]
        hashes = queries.hashes[queries.offsets[request] : queries.offsets[request + 1]].tolist()
        if not any(
            all(row >> bit & 1 for bit in bloom_positions(value, target_set))
            for row in rows
            for value in [*hashes, star_hash(schema.hash_seed)]
        ):
            return False
    return True


def plain(made: DecodeCase, nodes: Tensor) -> list[list[tuple[int, int]]]:
    rows = []
    for request, beams in enumerate(nodes.tolist()):
        for node in beams:
            row = []
            if node != NO_NODE:
                tokens, children = made.snapshot.trie.children(node)
                both = zip(tokens.tolist(), children, strict=True)
                row = [pair for pair in both if passes(made, request, pair[1] - 1)]
            rows.append(row)
    return rows


def all_internal_nodes(made: DecodeCase) -> Tensor:
    """Every internal node for every request, and a dead beam.   [B, internal + 1]"""
    nodes = torch.tensor([*range(made.snapshot.trie.num_internal), NO_NODE], dtype=torch.int32)
    return nodes.repeat(len(made.rows), 1)


@examples(35)
@given(case=cases(most_ads=25, most_users=5), mode=st.sampled_from(MatcherMode))
def test_children_are_admitted_as_on_plain_integers(case: Case, mode: MatcherMode) -> None:
    assert_children_are_admitted_as_on_plain_integers(decode_case(case, mode))


def test_a_value_passes_a_bloom_row_that_has_all_of_its_bits() -> None:
    """Rows have few bits, but often one of a value that they do not hold."""
    letters = TargetSet("letter", bloom_bits=64, bloom_hashes=4, max_request_values=1)
    schema = TargetingSchema((), (letters,), 0)
    ads = [
        RawAd(i, (i,), 0.0, {"letter": (frozenset([letter]), None)})
        for i, letter in enumerate("abcdefgh")
    ]
    users = tuple({"letter": [f"other-{i}"]} for i in range(32))
    case = Case(schema, (8,), tuple(ads), users)
    assert_children_are_admitted_as_on_plain_integers(decode_case(case, MatcherMode.UNION))


def assert_children_are_admitted_as_on_plain_integers(made: DecodeCase) -> None:
    nodes = all_internal_nodes(made)
    expected = plain(made, nodes)
    for admit in (admit_children_reference, admit_children_cpu):
        got = admit(nodes, made.users, made.index)
        assert split_rows(got) == expected
        assert {got.offsets.dtype, got.tokens.dtype, got.nodes.dtype} == {torch.int32}


@examples(35)
@given(case=cases(most_ads=40, most_users=3), mode=st.sampled_from(MatcherMode))
def test_no_child_above_an_eligible_ad_is_lost(case: Case, mode: MatcherMode) -> None:
    made = decode_case(case, mode)
    nodes = all_internal_nodes(made)
    rows = split_rows(admit_children_cpu(nodes, made.users, made.index))
    for request, user in enumerate(case.users):
        for prefix in eligible_prefixes(case.schema, case.ads, user) - {()}:
            parent, child = (made.snapshot.trie.walk(p) for p in (prefix[:-1], prefix))
            assert (prefix[-1], child) in rows[request * nodes.shape[1] + parent]


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
