"""The deep invariants hold for every rightly built snapshot, and each of them can fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from grace.configs.errors import SnapshotError
from grace.index.invariants import check_invariants
from grace.index.matchers.modes import MatcherMode
from grace.index.matchers.node_matchers import BloomMatchers, NodeMatchers
from grace.index.snapshot import Snapshot
from grace.index.storage.structure import check_structure
from grace.index.users.values import InternedValues
from support.forgery import SCHEMA, some
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import Case, cases, examples, random_case

ADS = (
    RawAd(
        1,
        (0, 0),
        rules={"country": (some("NO"), None), "location": (some("a", "b"), None)},
        entities={"campaign": 63},
    ),
    RawAd(
        2,
        (0, 1),
        rules={"country": (some("PT"), None), "location": (None, some("c"))},
        entities={"campaign": 7},
    ),
    RawAd(3, (0, 1), rules={"audience": (some("x"), some("y"))}),
    RawAd(4, (1, 0), rules={"country": (some("NO"), None)}, entities={"campaign": 63}),
    RawAd(5, (1, 1)),
)
Array = npt.NDArray[Any]


def built(*ads: RawAd, mode: MatcherMode = MatcherMode.UNION) -> Snapshot:
    return plain_snapshot(SCHEMA, (2, 3), ads or ADS, mode)


@pytest.mark.parametrize("mode", list(MatcherMode))
@given(case=cases())
@examples(11)
def test_every_plainly_built_snapshot_passes(case: Case, mode: MatcherMode) -> None:
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode)
    check_structure(snapshot, threads=1)
    check_invariants(snapshot)


def with_rules(snapshot: Snapshot, **arrays: Any) -> Snapshot:
    return replace(snapshot, rules=replace(snapshot.rules, **arrays))


def with_set_rules(snapshot: Snapshot, place: int, **arrays: Any) -> Snapshot:
    sets = list(snapshot.rules.sets)
    sets[place] = replace(sets[place], **arrays)
    return with_rules(snapshot, sets=tuple(sets))


def with_campaigns(snapshot: Snapshot, **arrays: Any) -> Snapshot:
    campaigns, advertisers = snapshot.entities
    return replace(snapshot, entities=(replace(campaigns, **arrays), advertisers))


def changed_rows(rows: NodeMatchers, **changes: Callable[[Array], Array]) -> NodeMatchers:
    arrays: dict[str, Any] = {n: change(getattr(rows, n)) for n, change in changes.items()}
    return replace(rows, **arrays)


def with_bitmask(snapshot: Snapshot, **changes: Callable[[Array], Array]) -> Snapshot:
    assert snapshot.matchers is not None
    rows = changed_rows(snapshot.matchers.bitmask, **changes)
    return replace(snapshot, matchers=replace(snapshot.matchers, bitmask=rows))


def with_bloom(snapshot: Snapshot, **changes: Callable[[Array], Array]) -> Snapshot:
    assert snapshot.matchers is not None
    first, *others = snapshot.matchers.blooms
    rows = changed_rows(first.rows, **changes)
    blooms = (BloomMatchers(rows, first.star), *others)
    return replace(snapshot, matchers=replace(snapshot.matchers, blooms=blooms))


def with_lists(snapshot: Snapshot, **changes: Callable[[Array], Array]) -> Snapshot:
    assert snapshot.exact is not None
    arrays: dict[str, Any] = {
        n: change(getattr(snapshot.exact, n)) for n, change in changes.items()
    }
    return replace(snapshot, exact=replace(snapshot.exact, **arrays))


def with_postings(snapshot: Snapshot, **changes: Callable[[Array], Array]) -> Snapshot:
    assert snapshot.exact is not None
    first, *others = snapshot.exact.postings
    arrays: dict[str, Any] = {n: change(getattr(first, n)) for n, change in changes.items()}
    postings = (replace(first, **arrays), *others)
    return replace(snapshot, exact=replace(snapshot.exact, postings=postings))


def changed(at: Any, new: Callable[[Array], Any]) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array = array.copy()
        array[at] = new(array)
        return array

    return change


def put(at: Any, value: int) -> Callable[[Array], Array]:
    return changed(at, lambda _: value)


def swapped(one: int, other: int) -> Callable[[Array], Array]:
    return changed([one, other], lambda array: array[[other, one]])


def flip(row: int, bit: int) -> Callable[[Array], Array]:
    at, mask = (row, bit // 64), np.uint64(1 << (bit % 64))
    return changed(at, lambda array: array[at] ^ mask)


def with_ad_rule(snapshot: Snapshot, at: int, rule: int) -> Snapshot:
    return replace(snapshot, ads=replace(snapshot.ads, ad_rule=put(at, rule)(snapshot.ads.ad_rule)))


def with_reserved_value(snapshot: Snapshot) -> Snapshot:
    _, audience = snapshot.set_values
    return replace(snapshot, set_values=(InternedValues.of(["*", "b", "c"]), audience))


# Leaves are nodes 3 to 6; bitmasks: NO, PT, all; location rules: {a, b}, -{c}, none.
EXACT, UNION = MatcherMode.EXACT, MatcherMode.UNION
STATIC, DYNAMIC = MatcherMode.STATIC, MatcherMode.DYNAMIC
# Static: 3 and 4 ids per entry. Location rows of level 1: {a, b}, {*}, zeros; of (0,): 0, 1, 2.
UNION_FAULTS: list[tuple[Callable[[Snapshot], Snapshot], str]] = [
    (lambda s: with_ad_rule(s, 0, 1), "ad_rule.npy: the first rule is 1, expected 0"),
    (lambda s: with_ad_rule(s, 1, 3), "ad_rule.npy: entry 1 has rule 3 before any has 1"),
    (lambda s: with_ad_rule(s, 4, 0), "ad_rule.npy: rule 4 is never used"),
    (
        lambda s: with_rules(s, bitmask=put(4, 0)(s.rules.bitmask)),
        "rule_bitmask.npy: rules 3 and 4 are equal",
    ),
    (
        lambda s: with_rules(s, bitmask=swapped(0, 1)(s.rules.bitmask)),
        "rule_bitmask.npy: the first bitmask is 1, expected 0",
    ),
    (
        lambda s: with_rules(
            s, bitmask_table=put(1, int(s.rules.bitmask_table[0, 0]))(s.rules.bitmask_table)
        ),
        "rule_bitmask_table.npy: rows 0 and 1 are equal",
    ),
    (
        lambda s: with_rules(s, bitmask_table=flip(0, 0)(s.rules.bitmask_table)),
        "rule_bitmask_table.npy: row 0 allows no value of country",
    ),
    (
        lambda s: with_rules(s, set_rules=put((0, 0), 1)(s.rules.set_rules)),
        "rule_sets.npy: the first location rule is 1, expected 0",
    ),
    (
        lambda s: with_set_rules(s, 0, include_offsets=np.array([0, 2, 2, 2]) * 0),
        "set_include_offsets.location.npy: set rules 0 and 2 are equal",
    ),
    (
        lambda s: with_set_rules(s, 1, exclude_values=s.rules.sets[1].include_values),
        "set_exclude_values.audience.npy: set rule 1 excludes all that it includes",
    ),
    (
        lambda s: with_set_rules(s, 0, exclude_values=np.array([0], np.int32)),
        "value_offsets.location.npy: value 2 is in no rule",
    ),
    (  # campaign 7 has ad 1, campaign 63 has ads 0 and 3
        lambda s: with_campaigns(s, of_ad=put(0, 0)(s.entities[0].of_ad)),
        "entity_offsets.campaign.npy: entity 0 has 1 ads, but is the entity of 2 ads",
    ),
    (
        lambda s: with_campaigns(s, of_ad=put(2, 0)(s.entities[0].of_ad)),
        "entity_offsets.campaign.npy: entity 0 has 1 ads, but is the entity of 2 ads",
    ),
    (
        lambda s: with_campaigns(s, ads=put(1, 1)(s.entities[0].ads)),
        "entity_ads.campaign.npy: entry 1 names ad 1, expected 0, of that entity",
    ),
    (with_reserved_value, "value_utf8.location.npy: value 0 is the reserved '*'"),
    (
        lambda s: with_bitmask(s, index=put(2, 2)),
        "bitmask_index.npy: the first level 2 row is 2, expected 1",
    ),
    (lambda s: with_bitmask(s, table=flip(-1, 4)), "which is not the OR of the rows below node"),
    (lambda s: with_bitmask(s, table=flip(0, 4)), "entry 0 has row 0, which is not the OR of"),
    (lambda s: with_bloom(s, table=flip(-1, 9)), "bloom_index.location.npy: entry "),
    (lambda s: with_bloom(s, table=flip(0, 9)), "bloom_index.location.npy: entry 0 has row 0"),
    (
        lambda s: with_bloom(s, table=lambda t: np.vstack([t[:-1], t[-2:-1]])),
        "bloom_table.location.npy: rows 2 and 3 are equal: each is stored once",
    ),
]
STATIC_FAULTS: list[tuple[Callable[[Snapshot], Snapshot], str]] = [
    (lambda s: with_bloom(s, index=put(0, 1)), "the first level 1 row is 1, expected 0"),
    (lambda s: with_bloom(s, index=put(1, 0)), "npy: entry 2 has level 1 row 2 before"),
    (
        lambda s: with_bloom(s, index=put(3, 2)),
        "entry 1 has partitions that are not the OR of the SIDs below it",
    ),
    (lambda s: with_bitmask(s, table=flip(-1, 0)), "which is not the OR of the rows below"),
    (lambda s: with_bloom(s, index=put(7, 3)), "entry 2 has one SID, but several partitions"),
]
EXACT_FAULTS: list[tuple[Callable[[Snapshot], Snapshot], str]] = [
    (
        lambda s: with_lists(s, leaf_offsets=put(1, 2)),
        "leaf_rule_offsets.npy: leaf 0 has 2 rules, expected 1",
    ),
    (
        lambda s: with_lists(s, leaf_rules=put(2, 3)),
        "leaf_rules.npy: leaf 1 has rule 3, expected 2",
    ),
    (
        lambda s: with_postings(s, include_offsets=put(1, 0)),
        "include_posting_offsets.location.npy: value 0 has 0 rules, expected 1",
    ),
    (
        lambda s: with_postings(s, include_rules=put(1, 2)),
        "include_postings.location.npy: value 1 has rule 2, expected 0",
    ),
    (
        lambda s: with_postings(s, exclude_rules=put(0, 2)),
        "exclude_postings.location.npy: value 2 has rule 2, expected 1",
    ),
]
DYNAMIC_FAULTS: list[tuple[Callable[[Snapshot], Snapshot], str]] = [
    (lambda s: with_bitmask(s, table=flip(0, 0)), "entry 0 has partitions that are not"),
    (lambda s: with_bloom(s, table=flip(-1, 9)), "which is not the OR of the rows below"),
]
FAULTS = [
    *((UNION, *fault) for fault in UNION_FAULTS),
    *((EXACT, *fault) for fault in EXACT_FAULTS),
    *((STATIC, *fault) for fault in STATIC_FAULTS),
    *((DYNAMIC, *fault) for fault in DYNAMIC_FAULTS),
]


@pytest.mark.parametrize(
    ("mode", "change", "fault"), FAULTS, ids=[f"{mode.value}-{fault}" for mode, _, fault in FAULTS]
)
def test_a_broken_invariant_is_named(
    mode: MatcherMode, change: Callable[[Snapshot], Snapshot], fault: str
) -> None:
    check_invariants(built(mode=mode))
    with pytest.raises(SnapshotError) as caught:
        check_invariants(change(built(mode=mode)))
    assert fault in str(caught.value)


def with_empty_partition(rows: NodeMatchers, entry: int) -> NodeMatchers:
    """One more id for the entry, of a row of zeros that stands last in the level's rows."""
    assert rows.offsets is not None
    at = int(rows.offsets[entry + 1])
    offsets = rows.offsets.copy()
    offsets[entry + 1 :] += 1
    end = rows.level_rows[0]
    index = np.where(rows.index < end, rows.index, rows.index + 1).astype(np.int32)
    table = np.insert(rows.table, end, 0, axis=0)
    level_rows = (end + 1, *rows.level_rows[1:])
    return replace(
        rows,
        index=np.insert(index, at, end).astype(np.int32),
        table=table,
        offsets=offsets,
        level_rows=level_rows,
    )


@pytest.mark.parametrize("block", [1, 2, 1000])
def test_dynamic_partitions_without_a_sid_are_named(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """They change no answer, but docs/snapshot.md says that they have no id."""
    monkeypatch.setattr("grace.index.invariants.BLOCK", block)
    snapshot = built(mode=DYNAMIC)
    assert snapshot.matchers is not None
    last = snapshot.trie.level_counts[1] - 1  # its ids are the last of level 1: by first use
    rows = with_empty_partition(snapshot.matchers.bitmask, last)
    broken = replace(snapshot, matchers=replace(snapshot.matchers, bitmask=rows))
    check_structure(broken, threads=1)
    with pytest.raises(SnapshotError, match=rf"entry {last} has a partition without a SID"):
        check_invariants(broken)


def test_blocks_do_not_change_the_verdict_on_exact_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for block in (1, 2, 3):
        monkeypatch.setattr("grace.index.invariants.BLOCK", block)
        check_invariants(built(mode=EXACT))
        with pytest.raises(SnapshotError, match="leaf 1 has rule 3, expected 2"):
            check_invariants(with_lists(built(mode=EXACT), leaf_rules=put(2, 3)))


def test_a_schema_without_attributes_has_partitions_without_a_bit() -> None:
    schema = replace(SCHEMA, attributes=())
    ads = [RawAd(i, (i // 2, i % 3)) for i in range(4)]
    snapshot = plain_snapshot(schema, (2, 3), ads, DYNAMIC)
    assert snapshot.matchers is not None
    assert not snapshot.matchers.bitmask.table.any()
    check_invariants(snapshot)


def test_a_sid_torn_between_partitions_is_named() -> None:
    """The first bit of {a, b} in one partition, the others in the next: their OR is as before."""
    snapshot = built(*ADS[:3], mode=STATIC)

    def torn(table: Array) -> Array:
        table = table.copy()
        first_bit = table[0] & (~table[0] + np.uint64(1))
        table[1] |= table[0] & ~first_bit
        table[0] = first_bit
        return table

    check_invariants(snapshot)
    with pytest.raises(SnapshotError, match="entry 0 has no partition that contains a SID below"):
        check_invariants(with_bloom(snapshot, table=torn))


@pytest.mark.parametrize("mode", [STATIC, DYNAMIC], ids=lambda mode: mode.value)
def test_blocks_do_not_change_the_verdict_on_partitions(
    mode: MatcherMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(np.random.default_rng(5), 111)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode)
    for block in (1, 2, 3, 7):
        monkeypatch.setattr("grace.index.invariants.BLOCK", block)
        check_invariants(snapshot)
        for at, fault in ((0, "entry 0 has partitions that are not the OR"), (-1, "entry")):
            with pytest.raises(SnapshotError, match=fault):
                check_invariants(with_bitmask(snapshot, table=flip(at, 0)))
