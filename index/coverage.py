"""Coverage: what share of a snapshot's ads has targeting rules.

It reveals a renamed or emptied column: the ads are still there, but everybody may see them.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace.configs.arrays import Bools, Int32, Int64, Integers
from grace.configs.errors import SnapshotError
from grace.index.forms.components import components_of
from grace.index.snapshot import Snapshot
from grace.index.storage.array_file import read_rows
from grace.index.storage.reader import map_snapshot
from grace.index.targeting.rules import TargetingRules
from grace.index.targeting.schema import ENDINGS, plain_column

_BLOCK_ADS = 1 << 22

_READ_FILES = (
    *("ad_rule.", "rule_", "alternative_", "set_include_offsets.", "set_exclude_offsets."),
    *("set_groups.", "property_offsets."),
)
"""The names of the files that `coverage` reads begin with one of these."""


@dataclass(frozen=True, slots=True)
class Coverage:
    # by name of the schema: the share of the ads that have a rule on it
    with_rule: dict[str, float]
    for_everybody: float  # the share of the ads that have no rule at all; a property is no rule
    distinct_rules: int  # of all ads; rules that allow the same users count once
    # of the ads table, in which some ad has a rule: `country`, `clauses.country`
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CoverageFall:
    """A name whose share of ads with a rule fell. `after` is None if the schema lost the name."""

    name: str
    before: float
    after: float | None


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """The coverage of a new version, and of the one that was current when it was built.

    `before` and `version_before` are None where there is nothing to compare with. `fault` says why
    the current version cannot be read.
    """

    after: Coverage
    most_drop: float  # of the share before; 1 allows every fall
    before: Coverage | None = None
    version_before: int | None = None
    fault: str | None = None

    @property
    def may_be_published(self) -> bool:
        """Return whether no name fell too much. An unreadable version may hide a fall."""
        fell = self.fault is not None or self.falls or self.lost_columns
        return self.most_drop >= 1 or not fell

    @property
    def lost_columns(self) -> tuple[str, ...]:
        """The columns that lost all their rules, of names that fell by no more than allowed."""
        before = () if self.before is None or self.most_drop >= 1 else self.before.columns
        fallen = {fall.name + end for fall in self.falls for end in ("", *ENDINGS)}
        lost = (column for column in before if column not in self.after.columns)
        return tuple(column for column in lost if plain_column(column) not in fallen)

    @property
    def falls(self) -> tuple[CoverageFall, ...]:
        """The names whose share fell by more than `most_drop` of what it was."""
        before, after = self.before.with_rule if self.before else {}, self.after.with_rule
        return tuple(
            CoverageFall(name, share, after.get(name))
            for name, share in before.items()
            if share - after.get(name, 0.0) > self.most_drop * share
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.after),
            "version_before": self.version_before,
            "before": None if self.before is None else asdict(self.before),
            "falls": [asdict(fall) for fall in self.falls],
            "lost_columns": self.lost_columns,
            "fault": self.fault,
        }


def coverage(snapshot: Snapshot) -> Coverage:
    """Look at each distinct rule once, and count its ads. The arrays may be maps of files."""
    rules = snapshot.rules
    ads_of_rule = _ads_of_rule(snapshot.ads.ad_rule, rules.num_rules + rules.num_alternatives)
    has_rule: dict[str, Bools] = {}
    for number, component in enumerate(components_of(snapshot.schema)):
        for name, limited in component.limited(rules.parts[number]):
            rows = np.asarray(rules.rows[:, number])
            _require_below("rule_rows.npy", rows, len(limited))
            has_rule[name] = _with_alternatives(limited[rows], rules)
    none: Bools = np.ones(len(ads_of_rule), np.bool_)
    properties = {each.name for each in snapshot.schema.properties}  # they limit nobody
    for name in has_rule.keys() - properties:
        none &= ~has_rule[name]
    ads = snapshot.ads.num_ads
    return Coverage(
        {name: int(ads_of_rule[has].sum()) / ads for name, has in has_rule.items()},
        int(ads_of_rule[none].sum()) / ads,
        rules.num_rules,
        snapshot.facts.rule_columns,
    )


def coverage_of_version(root: Path, version: int) -> Coverage:
    """Map the version's files, and check the digests of those that are read."""
    return coverage(map_snapshot(root, version, lambda file: file.startswith(_READ_FILES)))


def _with_alternatives(flags: Bools, rules: TargetingRules) -> Bools:
    """Add a flag for each alternative: whether any of its rules has the flag."""
    offsets, members = rules.alternatives
    if len(offsets) == 1:
        return flags
    _require_below("alternative_rules.npy", members, len(flags))
    _require_below("alternative_offsets.npy", offsets[:-1], len(members))
    return np.append(flags, np.logical_or.reduceat(flags[members], offsets[:-1]))


def _ads_of_rule(ad_rule: Int32, rules: int) -> Int64:
    """Count in blocks of at least as many ads as there are rules, so that the time is linear."""
    counts = np.zeros(rules, np.int64)
    step = max(_BLOCK_ADS, rules)
    for begin in range(0, len(ad_rule), step):
        block = read_rows(ad_rule, begin, min(begin + step, len(ad_rule)))
        _require_below("ad_rule.npy", block, rules)
        counts += np.bincount(block, minlength=rules)
    return counts


def _require_below(file: str, ids: Integers, limit: int) -> None:
    if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
        raise SnapshotError(file, f"ids must be 0 to {limit - 1}")
