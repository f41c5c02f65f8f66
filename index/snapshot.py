"""A snapshot in memory: all indexes of one version, and what they were built from."""

from dataclasses import dataclass

from grace.index.matchers.matchers import MatcherMode, Matchers
from grace.index.matching.ads import SidToAds
from grace.index.targeting.rules import TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

__all__ = ["Snapshot", "SnapshotFacts", "is_sid_space"]

_MAX_SID_SPACE = 255


def is_sid_space(name: str) -> bool:
    return 1 <= len(name) <= _MAX_SID_SPACE and name.isprintable()


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What the manifest says beside the arrays."""

    version: int  # uint64, increasing
    created_at: str  # UTC, 2026-01-31T12:00:00Z
    sid_space: str
    rejects: int
    updates_watermark: int  # ad updates up to this sequence number are in the ads


@dataclass(frozen=True, slots=True)
class Snapshot:
    facts: SnapshotFacts
    schema: TargetingSchema
    trie: SidTrie
    mode: MatcherMode
    matchers: Matchers | None  # None in mode `cd`
    ads: SidToAds
    rules: TargetingRules
    set_values: tuple[InternedValues, ...]  # in the schema's order of sets
