"""Snapshots of each format version, kept for ever: every later GRACE loads them and means the same.

`golden/v1` is a root with version 7 (matchers `union`, one set, current), 8 (matchers `cd`, no
sets), 9 (matchers `static`) and 10 (matchers `dynamic`, both with the set). What they hold is said
here in plain Python. Never write them again: a change of the format is a new format version with
another golden root.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace.index.matchers.modes import DynamicKWay, KWay, MatcherMode, StaticKWay
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage import (
    current_version,
    load_snapshot,
    verify_snapshot,
    versions,
    write_snapshot,
)
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.oracle import RawAd, Rule
from support.plain_builder import plain_snapshot
from support.plain_partitions import rows_of_entry

GOLDEN = Path(__file__).parent / "golden" / "v1"

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", ("NO", "PT"), missing_passes_exclude=True),
        Attribute("gender", ("female", "male", "unknown"), missing="unknown"),
    ),
    sets=(TargetSet("location", bloom_bits=64, bloom_hashes=2, max_request_values=64),),
    hash_seed=7,
)
STATIC = StaticKWay((3, 2, 2))
DYNAMIC = DynamicKWay(fill_target_millionths=90_000, k_max=4)
FACTS = SnapshotFacts(7, "2026-01-31T12:00:00Z", "golden-1", rejects=3, updates_watermark=63)

ADS: dict[tuple[int, ...], dict[int, tuple[float, dict[str, Rule]]]] = {
    (0, 2, 1): {
        5: (0.5, {"country": (frozenset({"NO"}), None)}),
        40: (0.0, {"country": (frozenset({"NO"}), None)}),
    },
    (0, 2, 4): {3: (1.25, {"location": (frozenset({"no/oslo", "pt/évora"}), None)})},
    (2, 0, 0): {111: (-1.0, {"gender": (None, frozenset({"male"}))})},
    (2, 1, 4): {
        9: (0.0, {"location": (None, frozenset({"no/oslo"}))}),
        2**63 - 1: (2.0, {}),
    },
}


def raw_ads() -> list[RawAd]:
    return [
        RawAd(ad_id, sid, weight, rules)
        for sid, ads in ADS.items()
        for ad_id, (weight, rules) in ads.items()
    ]


def bits_of(row: np.ndarray) -> set[int]:
    return {bit for bit in range(64 * len(row)) if int(row[bit // 64]) >> (bit % 64) & 1}


def names_of(bits: set[int]) -> dict[str, set[str]]:
    """The values that a bitmask row allows, by attribute: bits in declared order, `other` last."""
    order = [
        (attribute.name, value)
        for attribute in SCHEMA.attributes
        for value in (*attribute.values, "(other)")
    ]
    allowed: dict[str, set[str]] = {attribute.name: set() for attribute in SCHEMA.attributes}
    for bit in bits:
        name, value = order[bit]
        allowed[name].add(value)
    return allowed


def listed(snapshot: Snapshot) -> Iterator[tuple[tuple[int, ...], int, float, int]]:
    """(SID, ad id, weight, rule) of every ad, read off the arrays."""
    trie, ads = snapshot.trie, snapshot.ads
    for leaf, sid in enumerate(trie.sids(np.arange(trie.num_leaves)).tolist()):
        for i in range(ads.ad_offsets[leaf], ads.ad_offsets[leaf + 1]):
            yield tuple(sid), int(ads.ad_ids[i]), float(ads.ad_weight[i]), int(ads.ad_rule[i])


def test_the_golden_root_is_whole() -> None:
    assert versions(GOLDEN) == (7, 8, 9, 10)
    assert current_version(GOLDEN) == 7
    for version in (7, 8, 9, 10):
        report = verify_snapshot(GOLDEN, version, deep=True)
        assert (report.version, report.rejects, report.notes) == (version, 3, ())


def test_its_facts_and_schema_are_read() -> None:
    snapshot = load_snapshot(GOLDEN)
    assert snapshot.facts == FACTS
    assert snapshot.schema == SCHEMA
    assert snapshot.mode is MatcherMode.UNION
    assert snapshot.trie.vocab_sizes == (3, 3, 5)
    assert snapshot.trie.level_counts == (1, 2, 3, 4)
    assert snapshot.set_values[0].strings == ("no/oslo", "pt/évora")


def test_its_ads_belong_to_their_sids() -> None:
    expected = [
        (sid, ad_id, weight)
        for sid, ads in ADS.items()
        for ad_id, (weight, _) in sorted(ads.items())
    ]
    for version in (7, 8, 9, 10):
        assert [ad[:3] for ad in listed(load_snapshot(GOLDEN, version))] == expected


def test_its_rules_allow_the_values_they_name() -> None:
    snapshot = load_snapshot(GOLDEN)
    rules = snapshot.rules
    meaning = {}
    for _, ad_id, _, rule in listed(snapshot):
        row = rules.bitmask_table[rules.bitmask[rule]]
        set_rule = int(rules.set_rules[rule, 0])
        location = rules.sets[0]
        lists = [
            {snapshot.set_values[0][v] for v in values[offsets[set_rule] : offsets[set_rule + 1]]}
            for offsets, values in (
                (location.include_offsets, location.include_values),
                (location.exclude_offsets, location.exclude_values),
            )
        ]
        meaning[ad_id] = (names_of(bits_of(row)), *lists)
    everyone = {"NO", "PT", "(other)"}
    any_gender = {"female", "male", "unknown", "(other)"}
    norway: tuple[dict[str, set[str]], set[str], set[str]]
    norway = ({"country": {"NO"}, "gender": any_gender}, set(), set())
    anyone = {"country": everyone, "gender": any_gender}
    assert meaning == {
        5: norway,
        40: norway,
        3: (anyone, {"no/oslo", "pt/évora"}, set()),
        111: ({"country": everyone, "gender": {"female", "unknown"}}, set(), set()),
        9: (anyone, set(), {"no/oslo"}),
        2**63 - 1: (anyone, set(), set()),
    }


def test_its_matchers_are_the_union_of_what_is_below() -> None:
    snapshot = load_snapshot(GOLDEN)
    assert snapshot.matchers is not None
    assert load_snapshot(GOLDEN, 8).matchers is None
    trie, bitmask, location = (
        snapshot.trie,
        snapshot.matchers.bitmask,
        snapshot.matchers.blooms[0],
    )
    allowed = {}
    has_star = {}
    for prefix in [(0,), (2,), (0, 2), (2, 0), (2, 1), (0, 2, 1), (0, 2, 4)]:
        entry = trie.walk(prefix) - 1
        allowed[prefix] = names_of(bits_of(bitmask.table[bitmask.index[entry]]))["country"]
        has_star[prefix] = bool(location.star[location.rows.index[entry]])
    everyone = {"NO", "PT", "(other)"}
    assert allowed.pop((0, 2, 1)) == {"NO"}
    assert set(map(frozenset, allowed.values())) == {frozenset(everyone)}
    assert not has_star.pop((0, 2, 4))
    assert all(has_star.values())


@pytest.mark.parametrize(
    ("version", "k_way", "partitions"),
    [
        (9, STATIC, [[{"NO", "PT", "(other)"}, set(), set()]] * 2),
        (10, DYNAMIC, [[{"NO", "PT", "(other)"}]] * 2),
    ],
)
def test_its_k_way_matchers_have_partitions(
    version: int, k_way: KWay, partitions: list[list[set[str]]]
) -> None:
    snapshot = load_snapshot(GOLDEN, version)
    assert snapshot.matchers is not None
    assert snapshot.matchers.k_way == k_way
    trie, bitmask, location = snapshot.trie, snapshot.matchers.bitmask, snapshot.matchers.blooms[0]
    found = [
        [
            names_of(bits_of(bitmask.table[i]))["country"]
            for i in rows_of_entry(trie, bitmask, entry)
        ]
        for entry in (0, 1)
    ]
    assert found == partitions
    stars = [location.star[i] for i in rows_of_entry(trie, location.rows, 0)]
    assert stars == ([1, 0, 0] if version == 9 else [1, 0])


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_the_same_catalogue_is_still_written_as_the_same_bytes(
    version: int, tmp_path: Path
) -> None:
    path = write_golden(tmp_path, version)
    golden = GOLDEN / path.name
    names = sorted(file.name for file in path.iterdir())
    assert names == sorted(file.name for file in golden.iterdir())
    for name in names:
        assert (path / name).read_bytes() == (golden / name).read_bytes(), name


def write_golden(root: Path, version: int) -> Path:
    mode, k_way = {
        7: (MatcherMode.UNION, None),
        8: (MatcherMode.CD, None),
        9: (MatcherMode.STATIC, STATIC),
        10: (MatcherMode.DYNAMIC, DYNAMIC),
    }[version]
    schema, ads = SCHEMA, raw_ads()
    if version == 8:
        schema = replace(SCHEMA, sets=())
    snapshot = plain_snapshot(schema, (3, 3, 5), ads, mode, k_way=k_way)
    return write_snapshot(replace(snapshot, facts=replace(FACTS, version=version)), root)
