"""Admission on the CPU: C++ from the header that defines matching, several threads over the rows.

What makes it quick: it holds no interpreter lock, builds no tensor of all children, stops a test at
the first word or query that decides it, and reads the tensors in place.
"""

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.index.matchers.admission import SetMatcher, native_admit_children
from grace.index.matchers.matcher_ids import MatcherIds
from grace.kernels.checks import address
from grace.kernels.decode.admit_children import (
    check_admission,
    fan_outs,
    row_addresses,
    set_addresses,
)
from grace.kernels.decode.tensors import Candidates, DecodeIndex
from grace.kernels.decode.users import UserTensors

_CPU = torch.device("cpu")
_CHILDREN_PER_THREAD = 16384  # testing fewer takes less time than starting a thread


def admit_children_cpu(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates:
    """Compute what `admit_children_reference` does, on up to torch.get_num_threads() threads."""
    check_admission(nodes, users, index)
    beams = nodes.contiguous()
    room = int(fan_outs(beams, index).sum())
    threads = min(torch.get_num_threads(), 1 + room // _CHILDREN_PER_THREAD)
    offsets = torch.empty(beams.numel() + 1, dtype=torch.int32)
    tokens = torch.empty(room, dtype=torch.int32)
    children = torch.empty(room, dtype=torch.int32)
    ids, table, words = _bitmasks(index)
    # In modes `cd` and `exact` the snapshot has no matchers, whatever sets the users have.
    sets = [
        SetMatcher(
            matcher=MatcherIds(*row_addresses("bloom", bloom.index, bloom.offsets, _CPU)),
            **set_addresses(bloom, queries, _CPU),
        )
        for bloom, queries in zip(index.blooms, users.sets, strict=False)
    ]
    native_admit_children(
        threads,
        *beams.shape,
        beams.numpy(),
        len(index.node_offsets) - 1,
        index.node_offsets.numpy(),
        index.csr_tokens.numpy(),
        ctypes.byref(ids),
        table,
        words,
        _words(users.bitmask),
        (SetMatcher * len(sets))(*sets),
        len(sets),
        _eligible(users, index),
        0 if index.exact is None else index.exact.level_starts[-1],
        offsets.numpy(),
        room,
        tokens.numpy(),
        children.numpy(),
    )
    admitted = int(offsets[-1])
    return Candidates(offsets, tokens[:admitted], children[:admitted])


def _bitmasks(index: DecodeIndex) -> tuple[MatcherIds, npt.NDArray[np.uint64], int]:
    """Return row ids, rows and words per row; in mode `cd` nothing and 0."""
    if index.bitmask_index is None or index.bitmask_table is None:
        return MatcherIds(), np.empty((0, 0), np.uint64), 0
    ids = MatcherIds(*row_addresses("bitmask", index.bitmask_index, index.bitmask_offsets, _CPU))
    return ids, _words(index.bitmask_table), index.bitmask_table.shape[1]


def _eligible(users: UserTensors, index: DecodeIndex) -> int | None:
    """Return the address of the masks of all nodes in mode `exact`, else None."""
    if index.exact is None:
        return None
    return address("users.eligible", users.eligible, _CPU, torch.int16)


def _words(tensor: Tensor) -> npt.NDArray[np.uint64]:
    return tensor.contiguous().numpy().view(np.uint64)
