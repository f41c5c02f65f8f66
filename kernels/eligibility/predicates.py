"""The predicates and lists of a snapshot on a device. A new kind of predicate joins its tuple."""

import numpy as np
import torch
from torch import Tensor

from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import SetRules
from grace.kernels.eligibility.attributes import AttributePredicate
from grace.kernels.eligibility.sets import HAS_EXCLUDE, HAS_INCLUDE, SetPredicate
from grace.kernels.eligibility.tensors import ExactTensors, Predicate, SetPostings
from grace.kernels.staged_copy import staged_copy


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
    rules = snapshot.rules
    table = staged_copy(rules.bitmask_table.view(np.int64), device)
    if device.type == "cuda":
        table = table.t().contiguous().t()  # by word: a GPU reads only words that some user has
    rows = staged_copy(rules.rows, device)  # [rules, components]: each reads its column
    attributes = AttributePredicate(rows[:, 0], table)
    return (attributes, *_set_predicates(snapshot, rows, lists, device))


def _set_predicates(
    snapshot: Snapshot, rows: Tensor, lists: ExactLists, device: torch.device
) -> list[SetPredicate]:
    schema = snapshot.schema.sets
    return [
        SetPredicate(
            rows[:, 1 + place],
            place,
            _postings(postings, set_rules, target_set.missing_passes_exclude, device),
        )
        for place, (target_set, set_rules, postings) in enumerate(
            zip(schema, snapshot.rules.sets, lists.postings, strict=True)
        )
    ]


def _postings(
    postings: Postings, rules: SetRules, missing_passes_exclude: bool, device: torch.device
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
        missing_passes_exclude=missing_passes_exclude,
    )
