"""Snapshots of each format version, kept for ever: every later GRACE loads them and means the same.

`golden/v2` is a root with version 7 (one set, current), 8 (no sets) and 9 (as 7, with two entities,
to one of which no ad belongs). What they hold is said here in plain Python. Never write them again:
a change of the format is a new format version with another golden root.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from grace.configs.eligibility import CD
from grace.index.snapshot import SnapshotFacts
from grace.index.storage import current_version, load_snapshot, versions, write_snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.verify import verify_snapshot
from support.oracle import RawAd, Rule
from support.plain_builder import plain_snapshot

GOLDEN = Path(__file__).parent / "golden" / "v2"
VERSIONS = (7, 8, 9)

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", ("NO", "PT"), missing_passes_exclude=True),
        Attribute("gender", ("female", "male", "unknown"), missing="unknown"),
    ),
    sets=(TargetSet("location", bloom_bits=64, bloom_hashes=2, max_request_values=64),),
    hash_seed=7,
)
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


ENTITIES = {
    40: {"campaign": 12},
    3: {"campaign": 2**40},
    9: {"campaign": 12},
    2**63 - 1: {"campaign": 12},
}


def raw_ads() -> list[RawAd]:
    return [
        RawAd(ad_id, sid, weight, rules)
        for sid, ads in ADS.items()
        for ad_id, (weight, rules) in ads.items()
    ]


def test_the_golden_root_is_whole() -> None:
    assert versions(GOLDEN) == VERSIONS
    assert current_version(GOLDEN) == 7
    for version in VERSIONS:
        report = verify_snapshot(GOLDEN, version, deep=True)
        assert (report.version, report.rejects, report.notes) == (version, 3, ())


def test_its_facts_and_schema_are_read() -> None:
    snapshot = load_snapshot(GOLDEN, eligibility=CD)
    assert snapshot.facts == FACTS
    assert snapshot.schema == SCHEMA
    assert snapshot.trie.vocab_sizes == (3, 3, 5)
    assert snapshot.trie.level_counts == (1, 2, 3, 4)
    assert snapshot.set_values[0].strings == ("no/oslo", "pt/évora")
    assert (snapshot.exact, snapshot.matchers) == (None, None)


def test_its_entities_are_read() -> None:
    campaigns, advertisers = load_snapshot(GOLDEN, 9).entities
    assert (campaigns.name, campaigns.ids.tolist()) == ("campaign", [12, 2**40])
    assert campaigns.of_ad.tolist() == [-1, 0, 1, -1, 0, 0]
    assert campaigns.ads.tolist() == [1, 4, 5, 2]
    assert (advertisers.name, len(advertisers)) == ("advertiser", 0)
    assert load_snapshot(GOLDEN, 7).entities == ()


def test_its_exact_lists_follow() -> None:
    lists = load_snapshot(GOLDEN, 7).exact
    assert lists is not None
    assert (lists.leaf_offsets.tolist(), lists.leaf_rules.tolist()) == (
        [0, 1, 2, 3, 5],
        [0, 1, 2, 3, 4],
    )
    (location,) = lists.postings
    assert (location.include_offsets.tolist(), location.include_rules.tolist()) == (
        [0, 1, 2],
        [1, 1],
    )
    assert (location.exclude_offsets.tolist(), location.exclude_rules.tolist()) == ([0, 1, 1], [2])


@pytest.mark.parametrize("version", VERSIONS)
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
    schema, ads = SCHEMA, raw_ads()
    if version == 8:
        schema = replace(SCHEMA, sets=())
    if version == 9:
        schema = replace(SCHEMA, entities=("campaign", "advertiser"))
        ads = [replace(ad, entities=ENTITIES.get(ad.ad_id, {})) for ad in ads]
    snapshot = plain_snapshot(schema, (3, 3, 5), ads)
    return write_snapshot(replace(snapshot, facts=replace(FACTS, version=version)), root)
