"""The predicates and lists of a snapshot on a device. A new kind of predicate joins its tuple."""

import numpy as np
import torch
from torch import Tensor

from grace.index.forms.bits import BitsComponent
from grace.index.forms.components import parts_of
from grace.index.forms.lists import ListsComponent
from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import NumberRows, SetRules
from grace.index.targeting.schema import TargetSet
from grace.kernels.devices import staged_copy
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.lists import HAS_EXCLUDE, HAS_INCLUDE, ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, Predicate, SetPostings


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
    rows = staged_copy(snapshot.rules.rows, device)  # [rules, components]: each reads its column
    postings = iter(lists.postings)
    for number, part in enumerate(parts_of(snapshot)):
        ids = rows[:, number]
        match part.component:
            case BitsComponent():
                made.append(BitsPredicate(ids, _table(part.rows, device)))
            case ListsComponent(target_set=target_set):
                of_set = _postings(next(postings), part.rows.rules, target_set, device)
                made.append(ListsPredicate(ids, number, of_set))
            case other:
                raise NotImplementedError(f"{other.label}: its form has no predicate")
    return tuple(made)


def _table(rows: NumberRows, device: torch.device) -> Tensor:
    table = staged_copy(rows.table.view(np.int64), device)
    # By word: a GPU reads only words that some user has.
    return table.t().contiguous().t() if device.type == "cuda" else table


def _postings(
    postings: Postings, rules: SetRules, target_set: TargetSet, device: torch.device
) -> SetPostings:
    has_include = np.diff(rules.include_offsets) > 0
    has_exclude = np.diff(rules.exclude_offsets) > 0
    kinds = np.where(has_include, HAS_INCLUDE, 0) | np.where(has_exclude, HAS_EXCLUDE, 0)
    return SetPostings(
        include_offsets=staged_copy(postings.include_offsets, device),
        include_rules=staged_copy(postings.include_rules, device),
        exclude_offsets=staged_copy(postings.exclude_offsets, device),
        exclude_rules=staged_copy(postings.exclude_rules, device),
        kinds=staged_copy(kinds.astype(np.uint8), device),
        missing_passes_exclude=target_set.missing_passes_exclude,
    )
