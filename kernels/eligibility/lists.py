"""The predicate of one targeting set: one of the included values, one of each group, and none of
the excluded ones.

A row is not compared with the users' values one by one. The posting list of a value has the rows
that name it, so walking the lists of the users' values finds all rows they touch. Filters of
properties walk posting lists in the same way.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import PostingTensors, pack_masks

HAS_INCLUDE = 1
HAS_EXCLUDE = 2


class NamedValues(NamedTuple):
    """Request b names the values ids[offsets[b]] .. ids[offsets[b + 1]].   both int32"""

    offsets: Tensor
    ids: Tensor


class ListQueries(NamedTuple):
    """What native code reads of B requests: of a set `offsets`, of a property `kinds`.

    offsets  int32 [B + 1]   a request with offsets[b] == offsets[b + 1] has no value of the set
    kinds    uint8 [B]       what a request asks of the property
    """

    included: NamedValues
    excluded: NamedValues
    offsets: Tensor | None = None
    kinds: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ListsPredicate:
    """
    ids        int32 [rules]   each rule's row
    component  the number of the component, and so of what users ask of it
    """

    ids: Tensor
    component: int
    postings: PostingTensors
    missing_passes_exclude: bool

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each set rule, and of each group.

        A user passes a rule with one of its included values, one of each group, and none of its
        excluded values. A user without a value of the set fails an exclude list, unless the schema
        says `missing_passes_exclude`.
        """
        asked: AskedLists[Tensor] = users.asked_of(self.component)
        has_value = asked.offsets.diff() > 0
        starts = torch.zeros_like(has_value), has_value | self.missing_passes_exclude
        return walk(self.postings, *starts, self.queries(users))

    def queries(self, users: UserTensors) -> ListQueries:
        asked: AskedLists[Tensor] = users.asked_of(self.component)
        named = NamedValues(asked.value_offsets, asked.value_ids)
        return ListQueries(named, named, offsets=asked.offsets)


def walk(
    postings: PostingTensors, with_include: Tensor, with_exclude: Tensor, queries: ListQueries
) -> Tensor:
    """Return the mask of each row.

    with_include  bool [B]   whether a row with an include list passes before any list is walked
    with_exclude  bool [B]   the same of a row with no list but an exclude list
    """
    has_include = postings.kinds & HAS_INCLUDE != 0
    has_exclude = postings.kinds & HAS_EXCLUDE != 0
    passes = []
    for request in range(len(with_include)):
        other = ~has_exclude | with_exclude[request]
        own = torch.where(has_include, with_include[request], other)
        own[_rows(postings.include_offsets, postings.include_rows, queries.included, request)] = (
            True
        )
        groups = own[postings.first_group :]
        lacking = torch.cat([groups.new_zeros(1, dtype=torch.int64), (~groups).cumsum(0)])
        ends = lacking[(postings.group_offsets - postings.first_group).long()]
        own[postings.grouped.long()] &= ends[1:] == ends[:-1]
        own[_rows(postings.exclude_offsets, postings.exclude_rows, queries.excluded, request)] = (
            False
        )
        passes.append(own)
    return pack_masks(torch.stack(passes))


def _rows(offsets: Tensor, rows: Tensor, named: NamedValues, request: int) -> Tensor:
    """Return the rows that name one of the request's values."""
    begin, end = named.offsets[request : request + 2].tolist()
    found = [rows[:0]]
    for value in named.ids[begin:end].tolist():
        first, last = offsets[value : value + 2].tolist()
        found.append(rows[first:last])
    return torch.cat(found).long()
