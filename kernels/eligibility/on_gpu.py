"""Eligible nodes on a GPU: native/cuda/predicate_rows.cu and eligible_nodes.cu.

A predicate without a body in CUDA runs its plain torch. All work goes to the current stream, and
nothing waits for the device. Each batch allocates its own memory, so batches may overlap.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from grace.kernels.checks import address, current_stream
from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import QueryTensors, UserTensors
from grace.kernels.eligibility.attributes import AttributePredicate, check_attributes
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.kernels.eligibility.masks import REQUESTS_PER_MASK, masks_of
from grace.kernels.eligibility.sets import SetPredicate
from grace.kernels.eligibility.tensors import ExactTensors, Predicate, SetPostings
from grace.native.loader import declare, load_cuda_library

_MOST_PREDICATES = 8  # of one launch: kMostPredicates of native/cuda/eligible_nodes.cu
_RUN = 512  # the most postings of a run: kRun of native/cuda/predicate_rows.cu
_WORDS = 2  # the 64-bit words of a run, and of what a word's users ask
_TILE = 512  # the members that a warp reads together: kTile of native/cuda/eligible_nodes.cu
_MOST_RANGES = 128  # of a warp


class _RowsOfRules(ctypes.Structure):
    _fields_ = (("masks", c_void_p), ("rows", c_int64), ("ids", c_void_p), ("id_stride", c_int64))


class _Predicates(ctypes.Structure):
    """The layout of native/cuda/eligible_nodes.cu."""

    _fields_ = (("each", _RowsOfRules * _MOST_PREDICATES), ("count", c_int32))


_attribute_rows = declare(
    "grace_cuda_attribute_rows",
    *(c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64),
    *(c_void_p, c_int64, c_void_p, c_void_p),
    library=load_cuda_library,
)
_set_rows = declare(
    "grace_cuda_set_rows",
    *(c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int32),
    *(c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    library=load_cuda_library,
)
_rule_masks = declare(
    "grace_cuda_rule_masks",
    *(c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int32, c_void_p),
    library=load_cuda_library,
)
_any_of_ranges = declare(
    "grace_cuda_any_of_ranges",
    *(c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64),
    *(c_int64, c_int32),
    library=load_cuda_library,
)


def eligible_nodes_on_gpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does."""
    exact = require_eligibility(users, index)
    requests = len(users.bitmask)
    rows = [(rows_on_gpu(each, users), each.ids) for each in exact.predicates]
    rules = rule_masks_cuda(rows, requests, exact.num_rules, exact.leaf_rules.device)
    return node_masks_cuda(rules, exact, index.node_offsets)


def rows_on_gpu(predicate: Predicate, users: UserTensors) -> Tensor:
    """Return the mask of each row of a predicate.   int16 [ceil(B / 16), rows]"""
    if isinstance(predicate, AttributePredicate):
        return attribute_rows_cuda(predicate.table, users.bitmask)
    if isinstance(predicate, SetPredicate):
        return set_rows_cuda(predicate.postings, predicate.queries(users))
    return predicate.passes(users)


def attribute_rows_cuda(table: Tensor, bitmask: Tensor) -> Tensor:
    """Compute what `attribute_rows_reference` does. The table may have any strides."""
    check_attributes(table, bitmask)
    (rows, words), requests, device = table.shape, len(bitmask), table.device
    masks = torch.empty(masks_of(requests), rows, dtype=torch.int16, device=device)
    asked = _words(masks_of(requests) * words * REQUESTS_PER_MASK, device)
    _attribute_rows(
        *(current_stream(device), table.data_ptr(), rows, words, *table.stride()),
        *(address("users.bitmask", bitmask, device, torch.int64), requests),
        *(asked.data_ptr(), masks.data_ptr()),
    )
    return masks


def set_rows_cuda(postings: SetPostings, queries: QueryTensors) -> Tensor:
    """Compute what `set_rows_reference` does."""
    device, rules = postings.kinds.device, len(postings.kinds)
    requests, values = len(queries.offsets) - 1, len(queries.values)
    # A request names a value once, so it walks no posting twice.
    sides = [len(postings.include_rules), len(postings.exclude_rules)]
    include_room, exclude_room = (
        values + requests * (side // _RUN) if side else 0 for side in sides
    )
    runs = _words(include_room + exclude_room, device)
    counts = torch.zeros(2, dtype=torch.int32, device=device)
    masks = _masks(masks_of(requests), rules, device)
    _set_rows(
        current_stream(device),
        address("offsets of queries", queries.offsets, device, torch.int32),
        address("offsets of values", queries.value_offsets, device, torch.int32),
        address("values of queries", queries.values, device, torch.int32),
        *(values, requests, address("kinds", postings.kinds, device, torch.uint8), rules),
        postings.missing_passes_exclude,
        address("include_offsets", postings.include_offsets, device, torch.int64),
        address("include_rules", postings.include_rules, device, torch.int32),
        include_room,
        address("exclude_offsets", postings.exclude_offsets, device, torch.int64),
        address("exclude_rules", postings.exclude_rules, device, torch.int32),
        exclude_room,
        *(runs.data_ptr(), counts.data_ptr(), masks.data_ptr()),
    )
    return masks


def rule_masks_cuda(
    rows: Sequence[tuple[Tensor, Tensor]], requests: int, num_rules: int, device: torch.device
) -> Tensor:
    """Return which requests pass all rows of each rule; none passes the last, `num_rules`.

    rows  for each predicate, the masks of its rows int16 [G, rows], and ids int32 [rules]

    int16 [G, rules + 1]
    """
    rules = torch.empty(masks_of(requests), num_rules + 1, dtype=torch.int16, device=device)
    for first in range(0, max(1, len(rows)), _MOST_PREDICATES):
        predicates = _Predicates()
        for place, (masks, ids) in enumerate(rows[first : first + _MOST_PREDICATES]):
            if ids.dtype != torch.int32 or ids.shape != (num_rules,) or ids.device != device:
                raise ValueError(
                    f"ids of a predicate must be int32 [rules] = [{num_rules}] on {device}, got "
                    f"{ids.dtype} {list(ids.shape)} on {ids.device}"
                )
            predicates.each[place] = _RowsOfRules(
                address("masks of a predicate", masks, device, torch.int16),
                *(masks.shape[1], ids.data_ptr(), ids.stride(0)),
            )
            predicates.count = place + 1
        _rule_masks(
            *(current_stream(device), ctypes.sizeof(predicates), ctypes.byref(predicates)),
            *(num_rules, requests, first > 0, rules.data_ptr()),
        )
    return rules


def node_masks_cuda(
    rules: Tensor, exact: ExactTensors, node_offsets: Tensor, of_warp: int | None = None
) -> Tensor:
    """Return the masks of all nodes from those of the rules.

    of_warp  the ranges of a warp, 1 .. 128. None: about a tile of members, for each level

    int16 [G, rules + 1] -> int16 [G, nodes]
    """
    nodes, device = exact.level_starts[-1], rules.device
    eligible = torch.empty(len(rules), nodes, dtype=torch.int16, device=device)
    write_leaves(eligible, rules, exact, of_warp)
    for level in reversed(range(len(exact.level_starts) - 2)):
        write_level(eligible, level, exact.level_starts, node_offsets, of_warp)
    return eligible


def write_leaves(
    eligible: Tensor, rules: Tensor, exact: ExactTensors, of_warp: int | None = None
) -> None:
    """Write the masks of the leaves, each the OR of the leaf's rules."""
    groups, nodes = eligible.shape
    device, leaves = eligible.device, len(exact.leaf_offsets) - 1
    _any_of_ranges(
        current_stream(device),
        *(address("leaf_offsets", exact.leaf_offsets, device, torch.int32), leaves),
        address("leaf_rules", exact.leaf_rules, device, torch.int32),
        *(address("rule masks", rules, device, torch.int16), rules.shape[1]),
        *(_mask_address(eligible, exact.level_starts[-2]), nodes),
        *(groups, of_warp or _ranges_of_warp(len(exact.leaf_rules) / leaves)),
    )


def write_level(
    eligible: Tensor,
    level: int,
    level_starts: Sequence[int],
    node_offsets: Tensor,
    of_warp: int | None = None,
) -> None:
    """Write the masks of a level's nodes, each the OR of the node's children."""
    groups, nodes = eligible.shape
    device, (first, end, last) = eligible.device, level_starts[level : level + 3]
    offsets = address("node_offsets", node_offsets, device, torch.int32)
    _any_of_ranges(
        *(current_stream(device), offsets + node_offsets.element_size() * first, end - first),
        # Child entry j leads to node j + 1.
        *(0, _mask_address(eligible, 1), nodes, _mask_address(eligible, first), nodes),
        *(groups, of_warp or _ranges_of_warp((last - end) / (end - first))),
    )


def _mask_address(eligible: Tensor, node: int) -> int:
    return eligible.data_ptr() + eligible.element_size() * node


def _ranges_of_warp(mean_members: float) -> int:
    return max(1, min(_MOST_RANGES, int(_TILE / max(1.0, mean_members))))


def _words(pairs: int, device: torch.device) -> Tensor:
    return torch.empty(_WORDS * pairs, dtype=torch.int64, device=device)


def _masks(groups: int, rows: int, device: torch.device) -> Tensor:
    """Return masks that kernels may change in whole words of two: with room after the last."""
    room = torch.empty(groups * rows + 1, dtype=torch.int16, device=device)
    return room[:-1].view(groups, rows)
