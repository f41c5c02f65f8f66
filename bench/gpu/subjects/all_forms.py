"""Add random rules of all forms of components to a catalogue, and what its users ask of them.

There are 2 ranges, a flight, a clock, and 3 properties; requests block values of each property. A
tenth of the ads have 3 clauses, so there are 1.2 times as many rules.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grace.index.forms.bits import AskedBits
from grace.index.forms.component import OPEN_EXCLUDE, OPEN_INCLUDE
from grace.index.forms.interval import AskedNumber
from grace.index.forms.properties import AskedFilters
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.interval import IntervalPredicate
from grace.kernels.eligibility.lists import HAS_INCLUDE, ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, PostingTensors

_HOURS = 168
_INTERVALS = (1_000, 1_000, 100_000)  # rows
_PROPERTIES = ((400, 3), (20_000, 10), (1_000_000, 1_000))  # values, and how many a request blocks


def with_all_forms(
    index: DecodeIndex, users: Sequence[UserTensors]
) -> tuple[DecodeIndex, list[UserTensors]]:
    exact, first = index.exact, len(users[0].asked)
    assert exact is not None
    torch.manual_seed(1)
    with exact.leaf_rules.device:
        return replace(index, exact=_with_components(exact, first)), [*map(_asking, users)]


def _with_components(exact: ExactTensors, first: int) -> ExactTensors:
    num_rules = exact.num_rules + exact.num_rules // 5
    made: list[Any] = []
    for each in exact.predicates:
        changes: dict[str, Any] = {"ids": torch.cat([each.ids, each.ids])[:num_rules]}
        if isinstance(each, BitsPredicate):
            hours = torch.randint(2**63 - 1, (-(-_HOURS // 64), len(each.table)))
            changes["table"] = torch.cat([each.table.t(), hours]).t()
        made.append(replace(each, **changes))  # type: ignore[type-var]
    for place, rows in enumerate(_INTERVALS, first):
        low = torch.rand(rows, dtype=torch.float64)
        table = torch.stack([low, low + 0.5], dim=1)
        made.append(IntervalPredicate(_ids(rows, num_rules), place, table, False))
    for place, (values, _) in enumerate(_PROPERTIES, first + len(_INTERVALS)):
        lists = torch.arange(values + 1), torch.arange(values, dtype=torch.int32)
        kinds = torch.full((values,), HAS_INCLUDE, dtype=torch.uint8)
        postings = PostingTensors(*lists, *lists, kinds, lists[1][:0], torch.tensor([values]).int())
        made.append(ListsPredicate(_ids(values, num_rules), place, postings))
    members = 1 + 2 * (torch.rand(len(exact.leaf_rules)) < 0.1)
    ends = torch.cat([members.new_zeros(1), members.cumsum(0)])
    leaf_rules = exact.leaf_rules.repeat_interleave(members)
    of_clauses = torch.ones_like(leaf_rules, dtype=torch.bool)
    of_clauses[ends[:-1]] = False
    others = exact.num_rules + _ids(num_rules - exact.num_rules, len(leaf_rules))
    return replace(
        exact,
        predicates=tuple(made),
        leaf_offsets=ends[exact.leaf_offsets.long()].int(),
        leaf_rules=torch.where(of_clauses, others, leaf_rules),
        num_rules=num_rules,
    )


def _ids(rows: int, count: int) -> Tensor:
    return torch.randint(rows, (count,), dtype=torch.int32)


def _asking(users: UserTensors) -> UserTensors:
    requests = len(users.bitmask)
    hours = torch.zeros(requests, -(-_HOURS // 64), dtype=torch.int64)
    hour = torch.randint(_HOURS, (requests, 1))
    hours.scatter_(1, hour // 64, 1 << hour % 64)
    asked = [AskedBits(torch.cat([users.bitmask, hours], dim=1)), *users.asked[1:]]
    asked += [AskedNumber(torch.rand(requests, dtype=torch.float64)) for _ in _INTERVALS]
    for values, blocked in _PROPERTIES:
        ids = [torch.randperm(values)[:blocked].sort().values.int() for _ in range(requests)]
        opens = torch.full((requests,), OPEN_INCLUDE | OPEN_EXCLUDE, dtype=torch.uint8)
        ends = torch.arange(requests + 1, dtype=torch.int32)
        asked.append(AskedFilters(opens, 0 * ends, ids[0][:0], blocked * ends, torch.cat(ids)))
    return UserTensors(tuple(asked))
