"""The predicate of one targeting set: one of the included values, and none of the excluded ones.

A set rule is not compared with the users' values one by one. The posting list of a value has the
set rules that name it, so walking the lists of the users' values finds all rules they touch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import SetPostings, pack_masks

HAS_INCLUDE = 1
HAS_EXCLUDE = 2


@dataclass(frozen=True, slots=True)
class ListsPredicate:
    """
    ids        int32 [rules]   each rule's set rule: a column of the table of all sets
    component  the number of the component, and so of what users ask of it
    """

    ids: Tensor
    component: int
    postings: SetPostings

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each set rule.

        A user passes a rule with one of its included values and none of its excluded ones. A user
        without a value of the set fails an exclude list, unless the schema says
        `missing_passes_exclude`.
        """
        postings, queries, passes = self.postings, self.queries(users), []
        for request in range(len(queries.offsets) - 1):
            begin, end = queries.value_offsets[request : request + 2].tolist()
            values = queries.value_ids[begin:end].tolist()
            has_value = bool(queries.offsets[request + 1] > queries.offsets[request])
            passes.append(_includes(postings, values) & _allows(postings, values, has_value))
        return pack_masks(torch.stack(passes))

    def queries(self, users: UserTensors) -> AskedLists[Tensor]:
        """Return what the users ask about this set."""
        if self.component >= len(users.asked):
            raise ValueError(
                f"users.asked: there are {len(users.asked)} components, and the snapshot has at "
                f"least {self.component + 1}: encode users with the snapshot's schema"
            )
        asked: AskedLists[Tensor] = users.asked[self.component]
        return asked


def _includes(postings: SetPostings, values: list[int]) -> Tensor:
    """Return whether the include list of each set rule passes.   bool [set rules]"""
    includes = postings.kinds & HAS_INCLUDE == 0
    for value in values:
        includes[_posting(postings.include_offsets, postings.include_rules, value)] = True
    return includes


def _allows(postings: SetPostings, values: list[int], has_value: bool) -> Tensor:
    """Return whether the exclude list of each set rule passes.   bool [set rules]"""
    if not has_value and not postings.missing_passes_exclude:
        return postings.kinds & HAS_EXCLUDE == 0
    allows = torch.ones_like(postings.kinds, dtype=torch.bool)
    for value in values:
        allows[_posting(postings.exclude_offsets, postings.exclude_rules, value)] = False
    return allows


def _posting(offsets: Tensor, rules: Tensor, value: int) -> Tensor:
    begin, end = offsets[value : value + 2].tolist()
    return rules[begin:end].long()
