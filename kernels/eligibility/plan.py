"""What all batches of an index share: where its lists of mode `exact` are, checked once.

An index keeps its plan, and the plan keeps the lists, so the addresses stay valid. Stopped ads
change the rules of leaves in place. The structures have the layout of
native/include/grace/eligibility.h.
"""

from ctypes import POINTER, Structure, c_int64, c_void_p
from itertools import pairwise

import torch
from torch import Tensor

from grace.kernels.checks import address, fields, require_tensor
from grace.kernels.eligibility.bits import BitsPredicate
from grace.kernels.eligibility.interval import IntervalPredicate
from grace.kernels.eligibility.lists import ListsPredicate
from grace.kernels.eligibility.tensors import ExactTensors, PostingTensors, Predicate

_TILE = 512  # the members that a warp reads together: kTile of native/cuda/eligible_nodes.cu
_MOST_RANGES = 128  # of a warp


class RuleRows(Structure):
    _fields_ = (("ids", c_void_p), *fields(c_int64, "id_stride rows"))


class AttributeTable(Structure):
    _fields_ = (
        ("rules", RuleRows),
        ("words", c_void_p),
        *fields(c_int64, "words_per_row row_stride word_stride"),
    )


class PostingLists(Structure):
    _fields_ = (*fields(c_void_p, "offsets rows"), ("size", c_int64))


class ListTable(Structure):
    _fields_ = (
        ("rules", RuleRows),
        ("kinds", c_void_p),
        *fields(PostingLists, "include exclude"),
        *fields(c_void_p, "grouped group_offsets"),
        *fields(c_int64, "num_grouped num_values"),
    )


class IntervalTable(Structure):
    _fields_ = (("rules", RuleRows), ("rows", c_void_p), ("missing_passes", c_int64))


class Plan(Structure):
    _fields_ = (
        ("attributes", POINTER(AttributeTable)),
        ("num_attributes", c_int64),
        ("lists", POINTER(ListTable)),
        ("num_lists", c_int64),
        ("intervals", POINTER(IntervalTable)),
        ("num_intervals", c_int64),
        ("others", POINTER(RuleRows)),
        *fields(c_int64, "num_others rules"),
        *fields(c_void_p, "leaf_offsets leaf_rules node_offsets"),
        *fields(POINTER(c_int64), "level_starts of_warp"),
        ("levels", c_int64),
    )


class EligibilityPlan:
    """The predicates by kind, and `layout` for native code, which has no body for `others`."""

    def __init__(self, exact: ExactTensors, node_offsets: Tensor) -> None:
        self.exact = exact
        self.masks = exact.num_masks
        self._node_offsets = node_offsets
        self.device = device = exact.leaf_rules.device
        self.bits = [each for each in exact.predicates if isinstance(each, BitsPredicate)]
        self.lists = [each for each in exact.predicates if isinstance(each, ListsPredicate)]
        self.intervals = [each for each in exact.predicates if isinstance(each, IntervalPredicate)]
        native = (BitsPredicate, ListsPredicate, IntervalPredicate)
        self.others = [each for each in exact.predicates if not isinstance(each, native)]
        # A predicate may make its ids anew whenever it is asked for them.
        self._ids: list[Tensor] = []
        attributes = [self._attribute_table(each) for each in self.bits]
        lists = [self._list_table(each) for each in self.lists]
        intervals = [self._interval_table(each) for each in self.intervals]
        others = [self._rule_rows(each, 0) for each in self.others]
        starts = exact.level_starts
        members = [end - first for first, end in pairwise(starts[1:-1])] + [len(exact.leaf_rules)]
        of_warp = [
            _ranges_of_warp(count / max(1, end - first))  # without ads, only the root is there
            for count, (first, end) in zip(members, pairwise(starts[:-1]), strict=True)
        ]
        self.layout = Plan(
            attributes=(AttributeTable * len(attributes))(*attributes),
            num_attributes=len(attributes),
            lists=(ListTable * len(lists))(*lists),
            num_lists=len(lists),
            intervals=(IntervalTable * len(intervals))(*intervals),
            num_intervals=len(intervals),
            others=(RuleRows * len(others))(*others),
            num_others=len(others),
            rules=exact.num_rules,
            leaf_offsets=address("leaf_offsets", exact.leaf_offsets, device, torch.int32),
            leaf_rules=address("leaf_rules", exact.leaf_rules, device, torch.int32),
            node_offsets=address("node_offsets", node_offsets, device, torch.int32),
            level_starts=(c_int64 * len(starts))(*starts),
            of_warp=(c_int64 * len(of_warp))(*of_warp),
            levels=len(starts) - 2,
        )

    def _require_here(self, name: str, tensor: Tensor) -> None:
        if tensor.device != self.device:
            raise ValueError(f"{name} must be on {self.device}, got {tensor.device}")

    def _rule_rows(self, predicate: Predicate, rows: int) -> RuleRows:
        ids = predicate.ids
        require_tensor("ids of a predicate", ids, torch.int32, rules=self.exact.num_rules)
        self._require_here("ids of a predicate", ids)
        self._ids.append(ids)
        return RuleRows(ids.data_ptr(), ids.stride(0), rows)

    def _attribute_table(self, predicate: BitsPredicate) -> AttributeTable:
        table = predicate.table
        rows, words = len(table), table.shape[-1]
        require_tensor("table of attributes", table, torch.int64, rows=rows, words=words)
        self._require_here("table of attributes", table)
        own = self._rule_rows(predicate, rows)
        return AttributeTable(own, table.data_ptr(), words, *table.stride())

    def _list_table(self, predicate: ListsPredicate) -> ListTable:
        postings, device = predicate.postings, self.device
        return ListTable(
            self._rule_rows(predicate, len(postings.kinds)),
            address("kinds", postings.kinds, device, torch.uint8),
            self._posting_lists("include", postings),
            self._posting_lists("exclude", postings),
            address("grouped", postings.grouped, device, torch.int32),
            address("group_offsets", postings.group_offsets, device, torch.int32),
            len(postings.grouped),
            len(postings.include_offsets) - 1,
        )

    def _posting_lists(self, side: str, postings: PostingTensors) -> PostingLists:
        offsets: Tensor = getattr(postings, f"{side}_offsets")
        rows: Tensor = getattr(postings, f"{side}_rows")
        return PostingLists(
            address(f"{side}_offsets", offsets, self.device, torch.int64),
            address(f"{side}_rows", rows, self.device, torch.int32),
            len(rows),
        )

    def _interval_table(self, predicate: IntervalPredicate) -> IntervalTable:
        table = predicate.table
        require_tensor("table of numbers", table, rows=len(table), ends=2)
        return IntervalTable(
            self._rule_rows(predicate, len(table)),
            address("table of numbers", table, self.device, torch.float64),
            predicate.missing_passes,
        )


def _ranges_of_warp(mean_members: float) -> int:
    """Return how many ranges have about a tile of members. Every number gives the same masks."""
    return max(1, min(_MOST_RANGES, int(_TILE / max(1.0, mean_members))))
