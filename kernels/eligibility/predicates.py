"""The predicates and lists of a snapshot on a device. A new form of component has a case here."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.index.forms.bits import BitsComponent
from grace.index.forms.components import Part, parts_of
from grace.index.forms.interval import IntervalComponent
from grace.index.forms.lists import ListsComponent
from grace.index.forms.properties import PropertiesComponent
from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import NumberRows, SetRules, ValueRows
from grace.kernels.devices import staged_copy
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.interval import IntervalPredicate
from grace.kernels.eligibility.lists import HAS_EXCLUDE, HAS_INCLUDE, ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, PostingTensors, Predicate


def exact_tensors(snapshot: Snapshot, lists: ExactLists, device: torch.device) -> ExactTensors:
    # A CPU's tensors share the snapshot's memory, and stops change the rules of leaves.
    leaf_rules = staged_copy(lists.leaf_rules, device)
    return ExactTensors(
        predicates=_predicates(snapshot, lists, device),
        leaf_offsets=staged_copy(lists.leaf_offsets, device),
        leaf_rules=leaf_rules.clone() if device.type == "cpu" else leaf_rules,
        num_rules=lists.num_rules,
        level_starts=snapshot.trie.level_starts,
    )


def _predicates(
    snapshot: Snapshot, lists: ExactLists, device: torch.device
) -> tuple[Predicate, ...]:
    made: list[Predicate] = []
    postings = iter(lists.postings)
    for number, part in enumerate(parts_of(snapshot)):
        own = next(postings) if part.component.kind.has_values else ()
        if _passes_all(part):
            continue
        # A GPU reads the ids of one component after another.
        is_gpu = device.type == "cuda"
        ids = staged_copy(np.ascontiguousarray(part.ids) if is_gpu else part.ids, device)
        match part.component:
            case BitsComponent():
                made.append(BitsPredicate(ids, _table(part.rows, device)))
            case ListsComponent():
                of_set = _postings_of_set(own, part.rows.rows, device)
                made.append(ListsPredicate(ids, number, of_set))
            case PropertiesComponent():
                of_property = _postings_of_property(own, part.rows.rows, device)
                made.append(ListsPredicate(ids, number, of_property))
            case IntervalComponent(missing_passes=missing_passes):
                table = staged_copy(part.rows.table, device)
                made.append(IntervalPredicate(ids, number, table, missing_passes))
            case other:
                raise NotImplementedError(f"{other.label}: its form has no predicate")
    return tuple(made)


def _passes_all(part: Part) -> bool:
    """Return whether all rules have the one row that every request passes."""
    rows = part.rows.rows if part.component.kind.has_values else part.rows
    if len(rows) > 1 or isinstance(part.component, PropertiesComponent):
        return False
    return not any(limited.any() for _, limited in part.component.limited(rows))


def _table(rows: NumberRows, device: torch.device) -> Tensor:
    table = staged_copy(rows.table.view(np.int64), device)
    # By word: a GPU reads only words that some user has.
    return table.t().contiguous().t() if device.type == "cuda" else table


def _postings_of_set(postings: Postings, rows: SetRules, device: torch.device) -> PostingTensors:
    has_include = np.diff(rows.include.offsets) > 0
    has_exclude = np.diff(rows.exclude.offsets) > 0
    kinds = np.where(has_include, HAS_INCLUDE, 0) | np.where(has_exclude, HAS_EXCLUDE, 0)
    of_groups = np.full(len(rows.groups.lists.offsets) - 1, HAS_INCLUDE)
    grouped = np.flatnonzero(np.diff(rows.groups.offsets))
    places = len(rows) + np.append(rows.groups.offsets[grouped], len(of_groups))
    return _staged(postings, np.append(kinds, of_groups), grouped, places, device)


def _postings_of_property(
    postings: Postings, rows: ValueRows, device: torch.device
) -> PostingTensors:
    kinds = np.where(np.diff(rows.values.offsets) > 0, HAS_INCLUDE, HAS_EXCLUDE)
    return _staged(postings, kinds, np.empty(0), np.array([len(rows)]), device)


def _staged(
    postings: Postings,
    kinds: npt.NDArray[Any],
    grouped: npt.NDArray[Any],
    group_offsets: npt.NDArray[Any],
    device: torch.device,
) -> PostingTensors:
    """Copy the lists. The last of the posting lists are those of excluded values."""
    lists = [[staged_copy(array, device) for array in each] for each in postings]
    others = kinds.astype(np.uint8), grouped.astype(np.int32), group_offsets.astype(np.int32)
    return PostingTensors(*lists[0], *lists[-1], *(staged_copy(each, device) for each in others))
