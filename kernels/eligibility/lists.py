"""The predicate of one targeting set or property of ads, whose rows name values.

A row is not compared with the requests' values one by one. The posting list of a value has the rows
that name it, so walking the lists of the values that a request includes and excludes finds all rows
that they touch. For a set, both are the same values: the user's.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.index.forms.component import OPEN_EXCLUDE, OPEN_INCLUDE
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import PostingTensors, pack_masks

HAS_INCLUDE, HAS_EXCLUDE = OPEN_INCLUDE, OPEN_EXCLUDE
"""The kinds of rows, by the part of a request's `open` that says whether they pass at first. A row
of a property has values, HAS_INCLUDE, or is bare, HAS_EXCLUDE."""


@dataclass(frozen=True, slots=True)
class ListsPredicate:
    ids: Tensor  # int32 [rules] each rule's row
    component: int  # the number of the component, and so of what users ask of it
    postings: PostingTensors

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each row, and of each group.

        A request passes a row with one of its included values, one of each group, and none of its
        excluded values.
        """
        asked, postings, passes = self.asked(users), self.postings, []
        kinds = postings.kinds
        opens = torch.where(kinds & HAS_INCLUDE != 0, HAS_INCLUDE, kinds & HAS_EXCLUDE)
        for request, is_open in enumerate(asked.open):
            own = opens & ~is_open == 0
            named = _rows(postings.include_offsets, postings.include_rows, asked.included, request)
            own[named] = True
            groups = own[postings.first_group :]
            lacking = torch.cat([groups.new_zeros(1, dtype=torch.int64), (~groups).cumsum(0)])
            ends = lacking[(postings.group_offsets - postings.first_group).long()]
            own[postings.grouped.long()] &= ends[1:] == ends[:-1]
            named = _rows(postings.exclude_offsets, postings.exclude_rows, asked.excluded, request)
            own[named] = False
            passes.append(own)
        return pack_masks(torch.stack(passes))

    def asked(self, users: UserTensors) -> Any:
        """Return AskedLists of a set, or AskedFilters of a property."""
        return users.asked_of(self.component)


def _rows(offsets: Tensor, rows: Tensor, named: tuple[Tensor, Tensor], request: int) -> Tensor:
    """Return the rows that name one of the request's values."""
    begin, end = named[0][request : request + 2].tolist()
    found = [rows[:0]]
    for value in named[1][begin:end].tolist():
        first, last = offsets[value : value + 2].tolist()
        found.append(rows[first:last])
    return torch.cat(found).long()
