"""The predicate of one targeting set: one of the included values, and none of the excluded ones.

A set rule is not compared with the users' values one by one. The posting list of a value has the
set rules that name it, so walking the lists of the users' values finds all rules they touch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.decode.users import QueryTensors, UserTensors
from grace.kernels.eligibility.masks import pack_masks
from grace.kernels.eligibility.tensors import SetPostings

HAS_INCLUDE = 1
HAS_EXCLUDE = 2


@dataclass(frozen=True, slots=True)
class SetPredicate:
    """
    ids    int32 [rules]   each rule's set rule: a column of the table of all sets
    place  the set's place in the schema, and so in the users' sets
    """

    ids: Tensor
    place: int
    postings: SetPostings

    def passes(self, users: UserTensors) -> Tensor:
        return set_rows_reference(self.postings, users.sets[self.place])


def set_rows_reference(postings: SetPostings, queries: QueryTensors) -> Tensor:
    """Return the mask of each set rule.   int16 [ceil(B / 16), set rules]

    A rule without an include list includes every user. A user with no value of the set fails an
    exclude list, unless the schema says `missing_passes_exclude`.
    """
    no_include = postings.kinds & HAS_INCLUDE == 0
    no_exclude = postings.kinds & HAS_EXCLUDE == 0
    passes = []
    for request in range(len(queries.offsets) - 1):
        begin, end = queries.value_offsets[request : request + 2].tolist()
        values = queries.values[begin:end].tolist()
        included = no_include | _named(
            postings.include_offsets, postings.include_rules, values, no_include
        )
        allowed = ~_named(postings.exclude_offsets, postings.exclude_rules, values, no_include)
        has_value = bool(queries.offsets[request + 1] > queries.offsets[request])
        if not has_value and not postings.missing_passes_exclude:
            allowed = no_exclude
        passes.append(included & allowed)
    return pack_masks(torch.stack(passes))


def _named(offsets: Tensor, rules: Tensor, values: list[int], like: Tensor) -> Tensor:
    """Return whether a set rule names one of the values.   bool [set rules]"""
    named = torch.zeros_like(like)
    for value in values:
        begin, end = offsets[value : value + 2].tolist()
        named[rules[begin:end].long()] = True
    return named
