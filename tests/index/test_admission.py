"""Admission while decoding: never false for a node with an eligible ad, whatever the schema."""

import numpy as np
import pytest
from hypothesis import given

from grace.configs.eligibility import MatcherMode
from grace.index.matchers.admission import admitted_entries
from grace.index.matchers.bloom import bloom_positions, star_hash
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder, UserRows
from support.oracle import RawAd, eligible_prefixes
from support.plain_builder import plain_snapshot
from support.plain_partitions import rows_of_entry
from support.strategies import Case, cases, examples, random_case, random_schema

matching_modes = pytest.mark.parametrize(
    "mode",
    [mode for mode in MatcherMode if mode is not MatcherMode.CD],
    ids=lambda mode: mode.value,
)

row_modes = pytest.mark.parametrize(
    "mode",
    [mode for mode in MatcherMode if mode not in (MatcherMode.EXACT, MatcherMode.CD)],
    ids=lambda mode: mode.value,
)


def snapshot_and_rows(
    case: Case, mode: MatcherMode = MatcherMode.UNION
) -> tuple[Snapshot, UserRows]:
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode)
    return snapshot, UserEncoder(case.schema, snapshot.set_values).encode(case.users)


def assert_admitted_is_a_superset_of_eligible(case: Case, mode: MatcherMode) -> None:
    snapshot, rows = snapshot_and_rows(case, mode)
    for request, user in enumerate(case.users):
        admitted = admitted_entries(snapshot, rows, request)
        for prefix in eligible_prefixes(case.schema, case.ads, user) - {()}:
            node = snapshot.trie.walk(prefix)
            assert node != NO_NODE
            assert admitted[node - 1], f"{prefix} is eligible for {user}, but not admitted"


@pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)
@examples(15)
@given(case=cases())
def test_every_node_above_an_eligible_ad_is_admitted(mode: MatcherMode, case: Case) -> None:
    assert_admitted_is_a_superset_of_eligible(case, mode)


@examples(60)
@given(case=cases())
def test_mode_exact_admits_the_nodes_above_an_eligible_ad_and_no_others(case: Case) -> None:
    snapshot, rows = snapshot_and_rows(case, MatcherMode.EXACT)
    for request, user in enumerate(case.users):
        prefixes = eligible_prefixes(case.schema, case.ads, user) - {()}
        expected = np.zeros(snapshot.trie.num_entries, np.bool_)
        expected[[snapshot.trie.walk(prefix) - 1 for prefix in prefixes]] = True
        np.testing.assert_array_equal(admitted_entries(snapshot, rows, request), expected)


def test_partitions_refuse_nodes_that_their_union_admits() -> None:
    """Below (0,) each ad asks for one letter twice; a user with two letters matches none."""
    values = ("p", "q", "r")
    schema = TargetingSchema((Attribute("one", values), Attribute("other", values)), (), 0)
    ads = [
        RawAd(i, (0, i), 0.0, {n: (frozenset(v), None) for n in ("one", "other")})
        for i, v in enumerate(values)
    ]
    case = Case(schema, (1, 3), tuple(ads), ({"one": ["p"], "other": ["q"]},))
    first = range(1)
    admitted = {}
    for mode in (MatcherMode.UNION, MatcherMode.STATIC, MatcherMode.DYNAMIC):
        snapshot, rows = snapshot_and_rows(case, mode)
        admitted[mode.value] = admitted_entries(snapshot, rows, 0, first).tolist()
    assert admitted == {"union": [True], "static": [False], "dynamic": [False]}


@matching_modes
@pytest.mark.parametrize("sizes", [(1,), (63,), (64,), (65,), (250,), (1, 63, 64, 65)], ids=str)
def test_admitted_is_a_superset_for_attributes_around_word_borders(
    sizes: tuple[int, ...], mode: MatcherMode
) -> None:
    rng = np.random.default_rng(sum(sizes))
    for num_sets in (0, 3):
        schema = random_schema(rng, attribute_sizes=sizes, num_sets=num_sets)
        assert_admitted_is_a_superset_of_eligible(random_case(rng, 63, 5, schema), mode)


def admitted_on_integers(snapshot: Snapshot, rows: UserRows, request: int) -> list[bool]:
    """The same tests on Python integers, written from the definition."""
    assert snapshot.matchers is not None
    trie, bitmask = snapshot.trie, snapshot.matchers.bitmask
    user = as_integer(rows.bitmask[request])
    answers = []
    for entry in range(trie.num_entries):
        ids = rows_of_entry(trie, bitmask, entry)
        passes = any(as_integer(bitmask.table[i]) & user == user for i in ids)
        for target_set, bloom, queries in zip(
            snapshot.schema.sets, snapshot.matchers.blooms, rows.sets, strict=True
        ):
            nodes = [
                as_integer(bloom.rows.table[i]) for i in rows_of_entry(trie, bloom.rows, entry)
            ]
            begin, end = queries.offsets[request], queries.offsets[request + 1]
            hashes = [*queries.hashes[begin:end].tolist(), star_hash(snapshot.schema.hash_seed)]
            passes &= any(
                all(row >> bit & 1 for bit in bloom_positions(h, target_set))
                for row in nodes
                for h in hashes
            )
        answers.append(passes)
    return answers


def as_integer(words: np.ndarray) -> int:
    return int.from_bytes(words.tobytes(), "little")


@row_modes
@examples(15)
@given(case=cases(most_ads=25))
def test_native_admission_equals_the_test_on_plain_integers(mode: MatcherMode, case: Case) -> None:
    snapshot, rows = snapshot_and_rows(case, mode)
    for request in range(len(case.users)):
        expected = admitted_on_integers(snapshot, rows, request)
        assert admitted_entries(snapshot, rows, request).tolist() == expected


@matching_modes
def test_a_run_of_entries_gives_the_same_answers_as_all_of_them(mode: MatcherMode) -> None:
    case = random_case(np.random.default_rng(1), 111, 3)
    snapshot, rows = snapshot_and_rows(case, mode)
    whole = admitted_entries(snapshot, rows, 2)
    middle = range(5, snapshot.trie.num_entries - 3)
    assert np.array_equal(admitted_entries(snapshot, rows, 2, middle), whole[5:-3])
    with pytest.raises(ValueError, match="entries must be a run"):
        admitted_entries(snapshot, rows, 0, range(snapshot.trie.num_entries + 1))


def test_without_matchers_every_valid_token_is_admitted() -> None:
    case = random_case(np.random.default_rng(2), 33, 1)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, MatcherMode.CD)
    rows = UserEncoder(case.schema, snapshot.set_values).encode(case.users)
    assert admitted_entries(snapshot, rows, 0).all()
