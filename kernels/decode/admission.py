"""What admission reads, in the layout of native/include/grace/admission.h."""

from ctypes import Structure, c_int64, c_uint32, c_void_p

import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels.checks import address, fields
from grace.kernels.decode.tensors import MOST_SETS_ON_GPU, BloomTensors, DecodeIndex
from grace.kernels.decode.users import UserTensors


class _EntryRows(Structure):
    _fields_ = fields(c_void_p, "ids offsets")


class AdmissionSet(Structure):
    _fields_ = (
        ("rows", _EntryRows),
        *fields(c_void_p, "table star offsets hashes query_tables"),
        *fields(c_uint32, "bits hashes_per_value"),
    )


class Admission(Structure):
    _fields_ = (
        *fields(c_void_p, "node_offsets tokens"),
        ("internal_nodes", c_int64),
        ("bitmask", _EntryRows),
        *fields(c_void_p, "bitmask_table users user_words"),
        ("words", c_int64),
        ("eligible", c_void_p),
        ("leaf_rules", _EntryRows),
        *fields(c_int64, "eligible_stride requests num_sets"),
        ("sets", AdmissionSet * MOST_SETS_ON_GPU),
    )


def admission_of(users: UserTensors, index: DecodeIndex) -> tuple[Admission, list[AdmissionSet]]:
    """Return addresses of users and index, and of each set, but not what only a GPU reads."""
    device = index.node_offsets.device
    admission = Admission(
        node_offsets=address("node_offsets", index.node_offsets, device, torch.int32),
        tokens=address("csr_tokens", index.csr_tokens, device, torch.int32),
        internal_nodes=len(index.node_offsets) - 1,
        requests=len(users.bitmask),
    )
    if (exact := index.exact) is not None and users.eligible is not None:
        admission.eligible = address("users.eligible", users.eligible, device, torch.int16)
        admission.eligible_stride = users.eligible.shape[1]
        admission.leaf_rules = _rows("leaf rule", exact.leaf_rules, exact.leaf_offsets, device)
    if index.bitmask_index is None or index.bitmask_table is None:
        return admission, []
    admission.bitmask = _rows("bitmask", index.bitmask_index, index.bitmask_offsets, device)
    admission.bitmask_table = address("bitmask_table", index.bitmask_table, device, torch.int64)
    admission.users = address("users.bitmask", users.bitmask, device, torch.int64)
    admission.words = index.bitmask_table.shape[1]
    pairs = zip(index.blooms, users.sets, strict=True)
    return admission, [_set(bloom, queries, device) for bloom, queries in pairs]


def _set(bloom: BloomTensors, queries: AskedLists[Tensor], device: torch.device) -> AdmissionSet:
    return AdmissionSet(
        rows=_rows("bloom", bloom.index, bloom.offsets, device),
        table=address("bloom table", bloom.table, device, torch.int64),
        star=address("bloom star", bloom.star, device, torch.uint8),
        offsets=address("offsets of queries", queries.value_offsets, device, torch.int32),
        hashes=address("hashes of queries", queries.hashes, device, torch.int64),
        bits=bloom.bits,
        hashes_per_value=bloom.hashes,
    )


def _rows(name: str, ids: Tensor, offsets: Tensor | None, device: torch.device) -> _EntryRows:
    return _EntryRows(
        address(f"{name} index", ids, device, torch.int32),
        address(f"{name} offsets", offsets, device, torch.int32),
    )
