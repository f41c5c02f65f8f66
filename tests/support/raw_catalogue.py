"""A catalogue of up to millions of SIDs whose truth is plain: the oracle on its few distinct rules,
and NumPy on the columns of the ads table. It reads nothing that the product made.

A prefix is a number: its tokens are the digits, in the base of each token's vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grace.configs.eligibility import Eligibility, MatcherMode
from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import KINDS, TargetingSchema
from grace.index.users.user_rows import UserAttributes
from support.builds import ads_table, silent, write_schema
from support.oracle import RawAd, Rules, eligible
from support.plain_builder import PLAIN_SID_SPACE
from support.strategies import random_ads, random_schema, random_users, says_something, set_values

_MOST_VALUES = 30  # in all lists of nearly every rule, so that tables of millions of ads stay small
_MOST_ADS_OF_A_SID = 111
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    sids: int
    rules: int
    users: int
    vocab_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """What ads are targeted by, and whether ads of similar SIDs have similar rules.

    Without sizes and sets: by all that a schema may declare, and some ads have clauses.
    """

    attribute_sizes: tuple[int, ...] | None
    sets: int | None
    rules_follow_sids: bool
    least_includes: int = 0  # of each rule: the more, the fewer ads a user may see


@dataclass(frozen=True, eq=False)
class RawCatalogue:
    """Ads ascend by SID."""

    folder: Path  # of the table, and of the snapshot that is built from it
    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    rules: Sequence[RawAd]  # without ids and SIDs
    users: Sequence[UserAttributes]
    sid: Ints  # [ads]: whole SIDs as numbers
    rule: Ints  # [ads]: places in `rules`
    ad_id: Ints  # [ads]: in no order

    @staticmethod
    def make(kind: Kind, scale: Scale, seed: int, folder: Path) -> "RawCatalogue":
        rng = np.random.default_rng(seed)
        schema = _schema(rng, kind)
        rules = _rules(rng, schema, scale.rules, kind.least_includes)
        most = int(np.prod(scale.vocab_sizes))
        sids = rng.choice(most, scale.sids, replace=False)
        more = rng.choice(sids, int(0.7 * scale.sids))
        more[:_MOST_ADS_OF_A_SID] = sids[0]
        sid = np.sort(np.concatenate([sids, more]))
        rule = rng.integers(len(rules), size=len(sid))
        if kind.rules_follow_sids:
            local = rng.random(len(sid)) > 0.02
            rule[local] = _local_rules(rng, scale, len(rules), sid)[local]
        users = _users(rng, schema, scale.users)
        ad_id = rng.permutation(7 * len(sid))[: len(sid)]
        return RawCatalogue(folder, schema, scale.vocab_sizes, rules, users, sid, rule, ad_id)

    @cached_property
    def sids(self) -> Ints:
        """The distinct SIDs, ascending."""
        return np.unique(self.sid)

    @cached_property
    def first_ads(self) -> Ints:
        """Where the ads of each distinct SID begin, and the number of ads."""
        return np.append(np.searchsorted(self.sid, self.sids), len(self.sid))

    @cached_property
    def passes(self) -> npt.NDArray[np.bool_]:
        """Return who passes which rule, by the oracle.   [users, rules]"""
        return np.array(
            [[eligible(self.schema, ad, user) for ad in self.rules] for user in self.users]
        )

    @cached_property
    def _by_id(self) -> Ints:
        return np.argsort(self.ad_id)

    def ads_of_ids(self, ad_ids: Ints) -> Ints:
        """Return the places of ads."""
        places = self._by_id[np.searchsorted(self.ad_id, ad_ids, sorter=self._by_id)]
        assert np.array_equal(self.ad_id[places], ad_ids), "an ad id that no ad has"
        return places

    def some_stopped(self, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Stop about a tenth of the ads: single ones, and whole prefixes of them.   [ads]"""
        depth_2 = self.sid // int(np.prod(self.vocab_sizes[2:]))
        prefixes = np.unique(depth_2)
        gone = rng.choice(prefixes, len(prefixes) // 20, replace=False)
        return np.isin(depth_2, gone) | (rng.random(len(self.sid)) < 0.05)

    def snapshot(self, mode: MatcherMode) -> Snapshot:
        """Write the table in no order and build it, once; return the snapshot in a mode."""
        root = self.folder / "snapshots"
        if not root.exists():
            pq.write_table(self._table(), self.folder / "ads.parquet")
            write_schema(self.folder / "targeting.yaml", self.schema)
            spec = BuildSpec(
                read_data_folder(self.folder),
                root=root,
                sid_space=PLAIN_SID_SPACE,
                vocab_sizes=self.vocab_sizes,
                threads=2,
            )
            build(spec, silent)
        text = "static:61,31,1" if mode is MatcherMode.STATIC else mode.value
        return load_snapshot(root, eligibility=Eligibility.of(text))

    def _table(self) -> pa.Table:
        order = np.random.default_rng(1).permutation(len(self.sid))
        digits = np.stack(np.unravel_index(self.sid[order], self.vocab_sizes), axis=1)
        table = ads_table(self.schema, self.rules).take(pa.array(self.rule[order]))
        sids = pa.FixedSizeListArray.from_arrays(
            pa.array(digits.astype(np.uint16).ravel()), len(self.vocab_sizes)
        )
        table = table.drop_columns(["ad_id", "sid", "ad_weight"])
        return table.append_column("ad_id", pa.array(self.ad_id[order])).append_column("sid", sids)


class Truth:
    """Which prefixes lead to ads that each user of a batch may see: bit b is user b.

    ads     uint32 [ads]
    levels  uint32 [prefixes of length t] for t = 0 .. SID length, 0 where there is no such prefix
    """

    def __init__(
        self,
        catalogue: RawCatalogue,
        passes: npt.NDArray[np.bool_],
        stopped: npt.NDArray[np.bool_] | None,
    ) -> None:
        bits = np.uint32(1) << np.arange(len(passes), dtype=np.uint32)
        of_rules = np.bitwise_or.reduce(np.where(passes, bits[:, None], np.uint32(0)), axis=0)
        self.ads = of_rules[catalogue.rule]
        if stopped is not None:
            self.ads[stopped] = 0
        sids = np.zeros(int(np.prod(catalogue.vocab_sizes)), np.uint32)
        sids[catalogue.sids] = np.bitwise_or.reduceat(self.ads, catalogue.first_ads[:-1])
        self.levels = [sids]
        for size in reversed(catalogue.vocab_sizes):
            children = self.levels[0].reshape(-1, size)
            self.levels.insert(0, np.bitwise_or.reduce(children, axis=1))


def _schema(rng: np.random.Generator, kind: Kind) -> TargetingSchema:
    """Every other attribute and set lets users without a value pass excludes."""
    drawn = random_schema(rng, kind.attribute_sizes, kind.sets)
    while kind.sets is None and not _declares_all(drawn):
        drawn = random_schema(rng)
    return replace(
        drawn,
        attributes=tuple(
            replace(each, missing_passes_exclude=at % 2 == 0)
            for at, each in enumerate(drawn.attributes)
        ),
        sets=tuple(
            replace(each, missing_passes_exclude=at % 2 == 0) for at, each in enumerate(drawn.sets)
        ),
        entities=(),
    )


def _declares_all(schema: TargetingSchema) -> bool:
    clocks = {attribute.clock for attribute in schema.attributes}
    return len(clocks) > 1 and None in clocks and all(getattr(schema, key) for key in KINDS)


def _rules(
    rng: np.random.Generator, schema: TargetingSchema, count: int, least_includes: int
) -> list[RawAd]:
    """Return ads with distinct rules, of lists that are seldom long."""
    found: dict[tuple[Any, ...], RawAd] = {}
    while len(found) < count:
        for ad in random_ads(rng, schema, (1,), count):
            share = rng.choice([0.2, 0.5, 1.0])
            own, *clauses = (_some_of(rng, each, share) for each in (ad.rules, *ad.clauses))
            clauses = [each for each in clauses if says_something(each)]
            rules = [rule for each in (own, *clauses) for rule in each.values()]
            includes = sum(isinstance(rule, tuple) and rule[0] is not None for rule in rules)
            few_values = sum(map(_values, rules)) < _MOST_VALUES
            if includes >= least_includes and (few_values or rng.random() < 0.01):
                key = tuple(tuple(each.items()) for each in (own, *clauses))
                found[key] = RawAd(0, (), rules=own, clauses=tuple(clauses))
    return list(found.values())[:count]


def _some_of(rng: np.random.Generator, rules: Rules, share: float) -> Rules:
    return {name: rule for name, rule in rules.items() if rng.random() < share}


def _values(rule: Any) -> int:
    lists = (rule,) if isinstance(rule, frozenset) else rule
    return sum(len(each) for each in lists if isinstance(each, frozenset))


def _local_rules(rng: np.random.Generator, scale: Scale, rules: int, sid: Ints) -> Ints:
    """Ads below a first token share 17 rules; below two tokens, 3 of those."""
    after_one, after_two = (int(np.prod(scale.vocab_sizes[length:])) for length in (1, 2))
    of_one = rng.integers(rules, size=(scale.vocab_sizes[0], 17))
    of_two = rng.integers(17, size=(int(np.prod(scale.vocab_sizes[:2])), 3))
    chosen = of_two[sid // after_two, rng.integers(3, size=len(sid))]
    local: Ints = of_one[sid // after_one, chosen]
    return local


def _users(rng: np.random.Generator, schema: TargetingSchema, count: int) -> list[UserAttributes]:
    """Random users, among them one without values, one with unknown ones and one with 64 each."""
    names = [*(each.name for each in schema.attributes), *(each.name for each in schema.sets)]
    unknown = {name: ["a value that no rule names"] for name in names}
    many = {
        each.name: [*set_values(each)[:33], *(f"{each.name}/new{i}" for i in range(31))]
        for each in schema.sets
    }
    return [{}, unknown, many, *random_users(rng, schema, count - 3)]
