"""A snapshot in memory: the facts of one version, what a mode derives from them, and its limits."""

import re
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

import numpy as np

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import InputError
from grace.index.matchers.exact_lists import ExactLists
from grace.index.matchers.node_matchers import Matchers
from grace.index.matching.ads import Entities, SidToAds
from grace.index.targeting.rules import TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

MAX_ID = (1 << 31) - 1
"""Ids of nodes, ads, rows, rules and values, and offsets into them, are int32."""

MAX_SID_LENGTH = 16
MAX_VOCAB_SIZE = 1 << 16  # tokens are uint16
MAX_VERSION = (1 << 64) - 1
_MAX_SID_SPACE = 255
_CREATED_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)

SEVERAL_SNAPSHOTS = "split the catalogue into several snapshots"


def require_ids(count: int, things: str, remedy: str = SEVERAL_SNAPSHOTS) -> None:
    """Raise InputError if there are more things than ids can name."""
    if count > MAX_ID:
        raise InputError(f"{count} {things}, a snapshot holds at most 2^31 - 1: {remedy}")


def is_sid_space(name: str) -> bool:
    return 1 <= len(name) <= _MAX_SID_SPACE and name.isprintable()


def creation_time(created_at: str) -> datetime | None:
    """Return the time that `created_at` names; None if there is none, as for a leap second."""
    if not _CREATED_AT.fullmatch(created_at) or "T24" in created_at:
        return None
    try:
        return datetime.fromisoformat(created_at)
    except ValueError:
        return None


def require_sids(sid_space: str, vocab_sizes: tuple[int, ...]) -> None:
    """Raise InputError for a name or a vocabulary that no snapshot may have."""
    if not is_sid_space(sid_space):
        raise InputError(f"SID space {sid_space[:80]!r}: use 1 to 255 printable characters")
    if not 1 <= len(vocab_sizes) <= MAX_SID_LENGTH:
        raise InputError(f"vocab sizes {vocab_sizes}: 1 to {MAX_SID_LENGTH} tokens per SID")
    if not all(1 <= size <= MAX_VOCAB_SIZE for size in vocab_sizes):
        raise InputError(f"vocab sizes {vocab_sizes}: each must be 1 to {MAX_VOCAB_SIZE}")


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """The facts of the manifest that are not about its arrays."""

    version: int  # uint64, increasing
    created_at: str  # UTC, 2026-01-31T12:00:00Z
    sid_space: str
    rejects: int
    updates_watermark: int  # ad updates up to this sequence number are in the ads
    rule_columns: tuple[str, ...] = ()  # of the ads table, in which some ad has a rule


@dataclass(frozen=True, slots=True)
class Snapshot:
    facts: SnapshotFacts
    schema: TargetingSchema
    trie: SidTrie
    ads: SidToAds
    rules: TargetingRules
    set_values: tuple[InternedValues, ...]  # in the schema's order of sets
    entities: tuple[Entities, ...] = ()  # in the schema's order of entities
    # What decoding reads follows from the rest: `derive` makes it.
    mode: MatcherMode = MatcherMode.CD
    matchers: Matchers | None = None  # in modes `union`, `static` and `dynamic`
    exact: ExactLists | None = None  # in mode `exact`


def bytes_of(part: Any) -> int:
    """Return the size of all arrays in a part of a snapshot."""
    if isinstance(part, np.ndarray):
        return part.nbytes
    if isinstance(part, tuple):
        return sum(map(bytes_of, part))
    if is_dataclass(part):
        return sum(bytes_of(getattr(part, field.name)) for field in fields(part))
    return 0
