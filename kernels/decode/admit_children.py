"""Admission: which children of each live beam may lead to an ad that the user is eligible for.

A captured generation replays the same launches for every batch, while the users differ and, after
a swap, the snapshot too. So its steps call an `AdmissionSlot`, which points at the batch's users
and index before each run.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels.checks import require_tensor
from grace.kernels.decode.tensors import BloomTensors, Candidates, DecodeIndex, members_of
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.eligible_nodes import eligible_at
from grace.kernels.eligibility.tensors import masks_of

AdmitChildren: TypeAlias = Callable[[Tensor, UserTensors, DecodeIndex], Candidates]


class AdmissionSlot(Protocol):
    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """Serve these from here on, in the order of the current stream; they outlive the runs."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        """Admit children for what the slot points at when this runs, not when it is captured."""

    def leaves_of(self, nodes: Tensor) -> Tensor:
        """Return the leaf numbers of nodes of the last level, likewise; NO_NODE stays."""


def admit_children_reference(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates:
    """Return the children of every beam's node whose matchers the user of its request passes.

    nodes  int32 [B, M]   internal nodes of the trie, or NO_NODE; beam m of request b is row
                          b * M + m of the candidates, and is tested for user b

    Child entry j leads to node j + 1. It is admitted if its bitmask row contains the user's, and
    for each set its Bloom row contains the reserved element or one of the user's values. In the
    k-way modes an entry has several rows of each kind, and passes a kind if any of them passes. In
    mode `exact` it is admitted if `users.eligible` has its node or, for a leaf, one of the leaf's
    rules. In mode `cd` there are no matchers: every child is admitted. A beam at NO_NODE has no
    children.

    It works request by request: the children of one request's beams bound its memory.
    """
    check_admission(nodes, users, index)
    counts, entries = [], []
    for request, beams in enumerate(nodes):
        first_entries = index.node_offsets[beams.clamp(min=0).long()]
        rows, children = members_of(first_entries, fan_outs(beams, index))
        admitted = _passes(children, users, request, index)
        counts.append(rows[admitted].bincount(minlength=len(beams)))
        entries.append(children[admitted])
    ends = torch.cat(counts).cumsum(0)
    admitted_entries = torch.cat(entries)
    return Candidates(
        offsets=torch.cat([ends.new_zeros(1), ends]).int(),
        tokens=index.csr_tokens[admitted_entries],
        nodes=admitted_entries.int() + 1,
    )


class ReferenceSlot:
    """A slot for any device, whose steps run at once and cannot be captured."""

    def __init__(self, admit_children: AdmitChildren = admit_children_reference) -> None:
        self._admit_children = admit_children
        self._users: UserTensors | None = None
        self._index: DecodeIndex | None = None

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        self._users, self._index = users, index

    def admit_children(self, nodes: Tensor) -> Candidates:
        users, index = self._pointed_at()
        return self._admit_children(nodes, users, index)

    def leaves_of(self, nodes: Tensor) -> Tensor:
        return self._pointed_at()[1].leaves_of(nodes)

    def _pointed_at(self) -> tuple[UserTensors, DecodeIndex]:
        if self._users is None or self._index is None:
            raise RuntimeError("the slot points at nothing yet: call point_at before")
        return self._users, self._index


def check_admission(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> None:
    """Check the nodes as well; on a GPU this waits for the device."""
    check_admission_shapes(nodes, users, index)
    internal = len(index.node_offsets) - 1
    wrong = (nodes != NO_NODE) & ((nodes < 0) | (nodes >= internal))
    if wrong.any():
        request, beam = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"nodes[{request}, {beam}] is {int(nodes[request, beam])}: neither an internal node "
            f"0..{internal - 1} nor {NO_NODE}, a dead beam's"
        )
    if index.bitmask_table is None:
        return
    for queries in users.sets:
        if int(queries.value_offsets[-1]) != len(queries.hashes):
            raise ValueError(
                f"offsets of queries must end at {len(queries.hashes)}, the number of hashes, "
                f"got {int(queries.value_offsets[-1])}"
            )


def check_admission_shapes(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> None:
    requests = len(users.bitmask)
    if nodes.dim() != 2 or len(nodes) != requests or requests == 0:
        raise ValueError(
            f"nodes must be [requests, beams] of {requests} users, at least one, "
            f"got {list(nodes.shape)}"
        )
    require_tensor("nodes", nodes, torch.int32, requests=requests, beams=nodes.shape[1])
    check_users(users, index)


def check_users(users: UserTensors, index: DecodeIndex) -> None:
    """Check that the users are encoded for the snapshot's matchers, or their nodes are known."""
    exact = index.exact
    if exact is not None:
        if users.eligible is None:
            raise ValueError(
                "users.eligible: missing, and admission in mode exact reads it: "
                "pass the users through with_eligible first"
            )
        groups, masks = masks_of(len(users.bitmask)), exact.num_masks
        require_tensor("users.eligible", users.eligible, torch.int16, groups=groups, masks=masks)
    if index.bitmask_table is None:
        return
    requests, words = len(users.bitmask), index.bitmask_table.shape[1]
    require_tensor("users.bitmask", users.bitmask, torch.int64, requests=requests, words=words)
    if len(users.sets) != len(index.blooms):
        raise ValueError(
            f"users.sets must be as many as the snapshot's, {len(index.blooms)}, "
            f"got {len(users.sets)}"
        )
    for queries in users.sets:
        offsets = queries.value_offsets
        require_tensor("offsets of queries", offsets, torch.int32, borders=requests + 1)


def fan_outs(nodes: Tensor, index: DecodeIndex) -> Tensor:
    """Return the number of children of each node, 0 for NO_NODE.   int32 [...] -> int32 [...]"""
    live = nodes != NO_NODE
    some_node = nodes.clamp(min=0).long()
    children = index.node_offsets[some_node + 1] - index.node_offsets[some_node]
    return torch.where(live, children, 0)


def _passes(entries: Tensor, users: UserTensors, request: int, index: DecodeIndex) -> Tensor:
    """Test one user at the node of each child entry.   int64 [n] -> bool [n]"""
    if index.exact is not None:
        assert users.eligible is not None  # checked at the border
        return eligible_at(users.eligible, request, index)[entries + 1]
    if index.bitmask_index is None or index.bitmask_table is None:
        return torch.ones_like(entries, dtype=torch.bool)
    user = users.bitmask[request]
    owners, ids = _row_ids(entries, index.bitmask_index, index.bitmask_offsets)
    rows = index.bitmask_table[ids]
    passes = _any(((rows & user) == user).all(dim=1), owners, len(entries))
    for bloom, queries in zip(index.blooms, users.sets, strict=True):
        begin, end = queries.value_offsets[request : request + 2].tolist()
        owners, ids = _row_ids(entries, bloom.index, bloom.offsets)
        found = _contains_any(bloom, ids.long(), queries.hashes[begin:end].tolist())
        passes &= _any(found, owners, len(entries))
    return passes


def _row_ids(
    entries: Tensor, index: Tensor, offsets: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Return the rows of some entries, after the place of each one's entry (None: one each)."""
    if offsets is None:
        return None, index[entries]
    first_ids = offsets[entries]
    owners, places = members_of(first_ids, offsets[entries + 1] - first_ids)
    return owners, index[places]


def _any(passes: Tensor, owners: Tensor | None, count: int) -> Tensor:
    """Return whether any row of each owner passes.   bool [rows] -> bool [count]"""
    if owners is None:
        return passes
    return owners[passes].bincount(minlength=count) > 0


def _contains_any(bloom: BloomTensors, rows: Tensor, hashes: list[int]) -> Tensor:
    """Return whether a Bloom row has the reserved element or may have one of the values."""
    found = bloom.star[rows] != 0
    for value in hashes:
        contains = torch.ones_like(found)
        for i in range(bloom.hashes):
            # The hash is signed: the shift copies its sign, and the mask drops the copies.
            bit = (value >> (16 * i)) & (bloom.bits - 1)
            contains &= (bloom.table[rows, bit >> 6] >> (bit & 63)) & 1 != 0
        found |= contains
    return found
