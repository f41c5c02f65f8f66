"""Eligible nodes on the CPU: C++ on all cores, native/src/eligible_rows.cpp and eligible_nodes.cpp.

A kind of predicate without a body in C++ works through its plain torch.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from grace.kernels.checks import address, fields
from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import QueryTensors, UserTensors, value_addresses
from grace.kernels.eligibility.attributes import AttributePredicate, check_attributes
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.kernels.eligibility.masks import masks_of
from grace.kernels.eligibility.sets import SetPredicate
from grace.kernels.eligibility.tensors import Predicate, SetPostings, rule_ids
from grace.native.loader import array_in, declare

_CPU = torch.device("cpu")


class _Postings(ctypes.Structure):
    _fields_ = (
        *fields(c_void_p, "include_offsets include_rules exclude_offsets exclude_rules kinds"),
        *fields(c_int64, "num_rules num_values"),
        ("missing_passes_exclude", c_int32),
    )


class _SetQueries(ctypes.Structure):
    _fields_ = fields(c_void_p, "offsets value_offsets values")


class _PredicateRows(ctypes.Structure):
    _fields_ = (("masks", c_void_p), ("rows", c_int64), ("ids", c_void_p), ("stride", c_int64))


_attribute_rows = declare(
    "grace_attribute_rows", c_int32, c_int64, c_void_p, c_int64, c_int32, c_void_p, c_void_p
)
_set_rows = declare("grace_set_rows", c_int32, c_int64, c_void_p, c_void_p, c_void_p)
_eligible_nodes = declare(
    "grace_eligible_nodes",
    c_int32,
    c_int64,
    c_void_p,
    c_int64,
    c_int64,
    *[c_void_p] * 3,
    array_in(np.int64),
    c_int64,
    c_void_p,
)


def eligible_nodes_on_cpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does, on torch.get_num_threads() threads."""
    exact = require_eligibility(users, index)
    rows = [_rows(predicate, users) for predicate in exact.predicates]
    ids = [rule_ids(predicate, exact.num_rules, _CPU) for predicate in exact.predicates]
    predicates = _predicate_rows(rows, ids)
    requests, num_nodes = len(users.bitmask), exact.level_starts[-1]
    eligible = torch.empty(masks_of(requests), num_nodes, dtype=torch.int16)
    _eligible_nodes(
        torch.get_num_threads(),
        requests,
        predicates,
        len(predicates),
        exact.num_rules,
        address("leaf_offsets", exact.leaf_offsets, _CPU, torch.int32),
        address("leaf_rules", exact.leaf_rules, _CPU, torch.int32),
        address("node_offsets", index.node_offsets, _CPU, torch.int32),
        np.array(exact.level_starts),
        len(exact.level_starts) - 1,
        eligible.data_ptr(),
    )
    return eligible


def attribute_rows_cpu(table: Tensor, bitmask: Tensor) -> Tensor:
    """Compute what `attribute_rows_reference` does."""
    check_attributes(table, bitmask)
    (rows, words), requests = table.shape, len(bitmask)
    masks = torch.empty(masks_of(requests), rows, dtype=torch.int16)
    _attribute_rows(
        torch.get_num_threads(),
        requests,
        address("users.bitmask", bitmask, _CPU, torch.int64),
        rows,
        words,
        address("bitmask_table", table, _CPU, torch.int64),
        masks.data_ptr(),
    )
    return masks


def set_rows_cpu(postings: SetPostings, queries: QueryTensors) -> Tensor:
    """Compute what `set_rows_reference` does."""
    requests, num_rules = len(queries.offsets) - 1, len(postings.kinds)
    lists = _Postings(
        include_offsets=address("include_offsets", postings.include_offsets, _CPU, torch.int64),
        include_rules=address("include_rules", postings.include_rules, _CPU, torch.int32),
        exclude_offsets=address("exclude_offsets", postings.exclude_offsets, _CPU, torch.int64),
        exclude_rules=address("exclude_rules", postings.exclude_rules, _CPU, torch.int32),
        kinds=address("kinds", postings.kinds, _CPU, torch.uint8),
        num_rules=num_rules,
        num_values=len(postings.include_offsets) - 1,
        missing_passes_exclude=postings.missing_passes_exclude,
    )
    asked = _SetQueries(**value_addresses(queries, _CPU))
    masks = torch.empty(masks_of(requests), num_rules, dtype=torch.int16)
    both = ctypes.byref(lists), ctypes.byref(asked)
    _set_rows(torch.get_num_threads(), requests, *both, masks.data_ptr())
    return masks


def _rows(predicate: Predicate, users: UserTensors) -> Tensor:
    if isinstance(predicate, AttributePredicate):
        return attribute_rows_cpu(predicate.table, users.bitmask)
    if isinstance(predicate, SetPredicate):
        return set_rows_cpu(predicate.postings, predicate.queries(users))
    return predicate.passes(users)


def _predicate_rows(rows: Sequence[Tensor], ids: Sequence[Tensor]) -> ctypes.Array[_PredicateRows]:
    """Return the addresses of the tensors, which the caller must keep meanwhile."""
    found = []
    for masks, own in zip(rows, ids, strict=True):
        at = address("masks of a predicate", masks, _CPU, torch.int16)
        found.append(_PredicateRows(at, masks.shape[1], own.data_ptr(), own.stride(0)))
    return (_PredicateRows * len(found))(*found)
