"""The lists of mode `exact` on one device: rows, rules and leaves, as kernels read them.

Requests work in groups of 16, so that one AND or OR works for all of them: request b is bit b % 16
of an int16 mask in group b // 16. The mask of a row, rule or node says which of the 16 requests
pass it.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from grace.kernels.decode.users import UserTensors

REQUESTS_PER_MASK = 16


class Predicate(Protocol):
    """One kind of test that a rule makes of a user. A rule passes if all predicates' rows pass.

    ids  int32 [rules]   each rule's row; it may be a strided view
    """

    @property
    def ids(self) -> Tensor: ...

    def passes(self, users: UserTensors) -> Tensor:
        """Return the mask of each distinct row: int16 [ceil(B / 16), rows]. Plain torch."""


@dataclass(frozen=True, slots=True)
class PostingTensors:
    """The rows of one component that name each value. A property has one list for both sides."""

    # int64 [values + 1]: value v is included by include_rows[offsets[v]] ..
    include_offsets: Tensor
    include_rows: Tensor  # int32 [...]
    exclude_offsets: Tensor  # int64 [values + 1]
    exclude_rows: Tensor  # int32 [...]
    kinds: Tensor  # uint8 [rows]: has an include list | has an exclude list << 1
    grouped: Tensor  # int32 [...], the rows that also need groups, each of which is a row:
    group_offsets: Tensor  # int32 [... + 1]: grouped[i] needs the rows group_offsets[i] ..

    @property
    def first_group(self) -> int:
        """The rows from here on are groups."""
        return int(self.group_offsets[0])


@dataclass(frozen=True, slots=True)
class ExactTensors:
    predicates: tuple[Predicate, ...]
    # int32 [leaves + 1], the distinct rules of leaf i: leaf_offsets[i] .. [i + 1]
    leaf_offsets: Tensor
    # int32 [...]: `num_rules`, the rule that nobody passes, where all ads of this leaf and rule are
    # stopped
    leaf_rules: Tensor
    num_rules: int
    # the first node of each level of the trie, and at the end the number of nodes
    level_starts: tuple[int, ...]

    @property
    def num_masks(self) -> int:
        """The masks of a group: of the inner nodes, of the rules, and of the rule nobody passes."""
        return self.level_starts[-2] + self.num_rules + 1


def masks_of(requests: int) -> int:
    """Return the number of masks that hold this number of requests."""
    return -(-requests // REQUESTS_PER_MASK)


def pack_masks(passes: Tensor) -> Tensor:
    """Pack bool [B, n] into int16 [ceil(B / 16), n]: request b is bit b % 16 of row b // 16."""
    requests, rows = passes.shape
    packed = torch.zeros(masks_of(requests), rows, dtype=torch.int16, device=passes.device)
    for request in range(requests):
        # The last bit is the sign of an int16, which has no literal 1 << 15.
        bit = torch.tensor(1 << request % REQUESTS_PER_MASK).to(torch.int16).to(passes.device)
        packed[request // REQUESTS_PER_MASK] |= passes[request] * bit
    return packed


def has_bit(masks: Tensor, request: int) -> Tensor:
    """Return whether a request passes.   int16 [groups, n] -> bool [n]"""
    return masks[request // REQUESTS_PER_MASK] >> request % REQUESTS_PER_MASK & 1 != 0
