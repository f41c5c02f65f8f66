"""Join the rules of several shards or runs: each rule and each row once, by first use.

If every table is numbered by first use and the tables follow each other in the order of their ads,
the joined ids are by first use over all ads: what a later table repeats has its id already.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grace.index.builder.rule_table import RuleTable
from grace.index.targeting.rules import Lists, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues

Ids = npt.NDArray[np.int32]

RuleSource = tuple[TargetingRules, Sequence[Sequence[str]]]
"""The rules of one shard or run, and for each set its strings by value id, in UTF-8 order."""


@dataclass(frozen=True, slots=True)
class JoinedRules:
    """new_of: for each table, int32 [its rules]"""

    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    new_of: Sequence[Ids]


def join_rules(tables: Sequence[RuleSource], schema: TargetingSchema, threads: int) -> JoinedRules:
    """Encode the rules of all tables again, by the ids of all their values."""
    of_sets = zip(*(strings for _, strings in tables), strict=True)
    joined = tuple(InternedValues.of(set().union(*of_set)) for of_set in of_sets)
    new_of = []
    with closing(RuleTable(schema, threads)) as table:
        for rules, strings in tables:
            numbers, faults = table.add_again(_by_ids_of(joined, rules, strings))
            assert not faults.any()
            new_of.append(numbers)
        return JoinedRules(table.take(), joined, new_of)


def _by_ids_of(
    joined: Sequence[InternedValues], rules: TargetingRules, strings: Sequence[Sequence[str]]
) -> TargetingRules:
    """Return the rules with the joined ids of their values, which keep their order."""
    of_parts = iter(zip(joined, strings, strict=True))
    parts = []
    for part in rules.parts:
        if part.has_values:
            values, own = next(of_parts)
            ids = np.array([values.ids[value] for value in own], np.int32)
            part = type(part).of([Lists(each.offsets, ids[each.values]) for each in part.columns])
        parts.append(part)
    return replace(rules, parts=tuple(parts))
