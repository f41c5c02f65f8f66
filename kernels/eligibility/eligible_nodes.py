"""Which nodes lead to an ad that a user may see: rows -> rules -> leaves -> nodes.

A row is a distinct part of rules, such as a bitmask row or a set rule. Catalogues have few of them,
so each is tested once against the users of a batch. The rest only joins bits:

    a rule passes if the rows of all its predicates pass;
    a leaf is eligible if any of its rules passes;
    any other node is eligible if any of its children is.

Most nodes are leaves, and a search reaches few of them. So leaves get no masks: a node above them
joins the rules of all its leaves at once, and admission joins those of each leaf that it reaches.
"""

from itertools import pairwise

import torch
from torch import Tensor

from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import ExactTensors, has_bit, pack_masks


def eligible_nodes_reference(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Return the masks of inner nodes and, after them, of rules: `UserTensors.eligible`.

    int16 [ceil(B / 16), masks]. It works request by request: one request's nodes bound its memory.
    """
    exact = require_eligibility(users, index)
    rows = [predicate.passes(users) for predicate in exact.predicates]
    eligible = []
    for request in range(len(users.bitmask)):
        rules = _rules(rows, request, exact)
        nodes = _nodes(_leaves(rules, exact), index.node_offsets, exact.level_starts)
        eligible.append(torch.cat([nodes[: exact.level_starts[-2]], rules]))
    return pack_masks(torch.stack(eligible))


def eligible_at(masks: Tensor, request: int, index: DecodeIndex) -> Tensor:
    """Return whether each node, also a leaf, is eligible by a batch's masks.   bool [nodes]"""
    assert index.exact is not None  # only such an index has masks
    inner, rules = has_bit(masks, request).tensor_split([index.first_leaf])
    return torch.cat([inner, _leaves(rules, index.exact)])


def require_eligibility(users: UserTensors, index: DecodeIndex) -> ExactTensors:
    """Return the index's lists of mode `exact` if the users are encoded for them."""
    exact = index.exact
    if exact is None:
        raise ValueError("index: it has no lists of mode exact: use a snapshot of mode exact")
    if len(users.bitmask) == 0:
        raise ValueError("users: the batch has none, at least one is needed: send no empty batch")
    return exact


def _rules(rows: list[Tensor], request: int, exact: ExactTensors) -> Tensor:
    """Return whether each rule passes; the last, which stands for stopped ads, never does."""
    passes = exact.leaf_rules.new_ones(exact.num_rules, dtype=torch.bool)
    for masks, predicate in zip(rows, exact.predicates, strict=True):
        passes &= has_bit(masks, request)[predicate.ids.long()]
    return torch.cat([passes, passes.new_zeros(1)])


def _leaves(rules: Tensor, exact: ExactTensors) -> Tensor:
    """Return whether each leaf is eligible.   bool [rules + 1] -> bool [leaves]"""
    return _any_in_ranges(rules.index_select(0, exact.leaf_rules), exact.leaf_offsets)


def _nodes(leaves: Tensor, node_offsets: Tensor, level_starts: tuple[int, ...]) -> Tensor:
    """Return whether each node is eligible, level by level from the leaves up to the root."""
    eligible = leaves.new_zeros(level_starts[-1])
    first_leaf = level_starts[-2]
    eligible[first_leaf:] = leaves
    for first, end in reversed(list(pairwise(level_starts[:-1]))):
        # Child entry j leads to node j + 1.
        eligible[first:end] = _any_in_ranges(eligible[1:], node_offsets[first : end + 1])
    return eligible


def _any_in_ranges(passes: Tensor, offsets: Tensor) -> Tensor:
    """Return whether anything passes in offsets[i] .. offsets[i + 1].   bool [n] -> bool [m]"""
    counts = offsets.new_zeros(len(passes) + 1)
    torch.cumsum(passes, 0, dtype=counts.dtype, out=counts[1:])
    at_ends = counts.index_select(0, offsets)
    return at_ends[1:] > at_ends[:-1]
