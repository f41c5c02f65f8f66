"""The predicate of one property of ads: a request's filter asks for one of some values, or for none
of others.

A row has the values of an ad, and one posting list per value has its rows: for what a request asks
for, and for what it blocks.
"""

from dataclasses import dataclass

from torch import Tensor

from grace.index.forms.properties import ASKS_ANY, BARE_PASSES, AskedFilters
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.lists import (
    HAS_EXCLUDE,
    HAS_INCLUDE,
    ListQueries,
    NamedValues,
    walk,
)
from grace.kernels.eligibility.tensors import PostingTensors

HAS_VALUES, IS_BARE = HAS_INCLUDE, HAS_EXCLUDE
"""The kinds of rows, which differ in how they pass before any posting list is walked."""


@dataclass(frozen=True, slots=True)
class PropertiesPredicate:
    """
    ids        int32 [rules]   each rule's row
    component  the number of the component, and so of what users ask of it
    """

    ids: Tensor
    component: int
    postings: PostingTensors

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each row. Every row passes a request without a filter."""
        kinds = users.asked_of(self.component).kinds
        bare = (kinds == 0) | (kinds & BARE_PASSES != 0)
        return walk(self.postings, kinds & ASKS_ANY == 0, bare, self.queries(users))

    def queries(self, users: UserTensors) -> ListQueries:
        asked: AskedFilters[Tensor] = users.asked_of(self.component)
        return ListQueries(
            NamedValues(asked.any_offsets, asked.any_ids),
            NamedValues(asked.none_offsets, asked.none_ids),
            kinds=asked.kinds,
        )
