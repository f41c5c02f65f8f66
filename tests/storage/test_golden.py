"""Snapshots of each format version, kept for ever: every later GRACE loads them and means the same.

`golden/v3` is a root with version 7 (one set, current), 8 (no sets) and 9 (as 7, a name of each
other kind, clauses, and two entities, to one of which no ad belongs). What they hold is said here
in plain Python. Never write them again: a change of the format is a new format version with another
golden root.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grace.configs.eligibility import MatcherMode
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage import current_version, load_snapshot, versions, write_snapshot
from grace.index.targeting.schema import (
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from grace.index.verify import verify_snapshot
from support.arrays import assert_same_arrays
from support.forgery import some
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

GOLDEN = Path(__file__).parent / "golden" / "v3"
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

WEEKDAY = Attribute("weekday", tuple("0123456"), clock="day_of_week")
OTHERS: dict[str, Any] = {
    "entities": ("campaign", "advertiser"),
    "ranges": (Range("age", missing_passes=True),),
    "flights": (Flight("flight"),),
    "properties": (Property("category"),),
}

PLACES = some("no/oslo", "pt/évora")
ADS = (
    RawAd(5, (0, 2, 1), 0.5, {"country": (some("NO"), None)}),
    RawAd(40, (0, 2, 1), 0.0, {"country": (some("NO"), None)}, {"campaign": 12}),
    RawAd(3, (0, 2, 4), 1.25, {"location": (PLACES, None)}, {"campaign": 2**40}),
    RawAd(111, (2, 0, 0), -1.0, {"gender": (None, some("male"))}),
    RawAd(9, (2, 1, 4), 0.0, {"location": (None, some("no/oslo"))}, {"campaign": 12}),
    RawAd(2**63 - 1, (2, 1, 4), 2.0, {}, {"campaign": 12}),
)
FLIGHT = (1_767_225_600_000, None)
MORE_ADS = (
    RawAd(6, (2, 2, 0), 0.0, {"location_all": (PLACES, some("no/bergen")), "age": (18.0, 64.5)}),
    RawAd(8, (2, 2, 0), 0.0, {"flight": FLIGHT, "weekday": (some("5", "6"), None)}),
    RawAd(
        10,
        (2, 2, 1),
        rules={"category": some("cars", "sport")},
        clauses=({"age": (None, 30.0)}, {"location": (PLACES, None), "flight": FLIGHT}),
    ),
)


def snapshot_of(version: int) -> Snapshot:
    schema = SCHEMA
    if version == 8:
        schema = replace(SCHEMA, sets=())
    if version == 9:
        schema = replace(SCHEMA, attributes=(*SCHEMA.attributes, WEEKDAY), **OTHERS)
    ads = (*ADS, *MORE_ADS) if version == 9 else ADS
    snapshot = plain_snapshot(schema, (3, 3, 5), ads, MatcherMode.EXACT)
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
