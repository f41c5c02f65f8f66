"""Snapshots of each format version, kept for ever: every later GRACE loads them and means the same.

`golden/v2` is a root with version 7 (one set, current), 8 (no sets) and 9 (as 7, with two entities,
to one of which no ad belongs). What they hold is said here in plain Python. Never write them again:
a change of the format is a new format version with another golden root.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from grace.configs.eligibility import MatcherMode
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage import current_version, load_snapshot, versions, write_snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.verify import verify_snapshot
from support.arrays import assert_same_arrays
from support.forgery import some
from support.oracle import RawAd
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

PLACES = some("no/oslo", "pt/évora")
ADS = (
    RawAd(5, (0, 2, 1), 0.5, {"country": (some("NO"), None)}),
    RawAd(40, (0, 2, 1), 0.0, {"country": (some("NO"), None)}, {"campaign": 12}),
    RawAd(3, (0, 2, 4), 1.25, {"location": (PLACES, None)}, {"campaign": 2**40}),
    RawAd(111, (2, 0, 0), -1.0, {"gender": (None, some("male"))}),
    RawAd(9, (2, 1, 4), 0.0, {"location": (None, some("no/oslo"))}, {"campaign": 12}),
    RawAd(2**63 - 1, (2, 1, 4), 2.0, {}, {"campaign": 12}),
)


def snapshot_of(version: int) -> Snapshot:
    schema = SCHEMA
    if version == 8:
        schema = replace(SCHEMA, sets=())
    if version == 9:
        schema = replace(SCHEMA, entities=("campaign", "advertiser"))
    snapshot = plain_snapshot(schema, (3, 3, 5), ADS, MatcherMode.EXACT)
    return replace(snapshot, facts=replace(FACTS, version=version))


def test_the_golden_root_is_whole() -> None:
    assert versions(GOLDEN) == VERSIONS
    assert current_version(GOLDEN) == 7


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_read_as_what_it_was_and_still_written_as_the_same_bytes(
    version: int, tmp_path: Path
) -> None:
    verify_snapshot(GOLDEN, version, deep=True)
    expected, loaded = snapshot_of(version), load_snapshot(GOLDEN, version)
    assert loaded.facts == expected.facts
    assert_same_arrays(loaded, expected)
    path = write_snapshot(expected, tmp_path)
    golden = GOLDEN / path.name
    names = sorted(file.name for file in path.iterdir())
    assert names == sorted(file.name for file in golden.iterdir())
    for name in names:
        assert (path / name).read_bytes() == (golden / name).read_bytes(), name
