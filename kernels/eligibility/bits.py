"""The predicate of attributes: a rule's bitmask row has every bit that the user's row has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.masks import pack_masks


@dataclass(frozen=True, slots=True)
class BitsPredicate:
    """
    ids    int32 [rules]          each rule's row
    table  int64 [rows, words]    the attribute values that a row allows
    """

    ids: Tensor
    table: Tensor

    def passes(self, users: UserTensors) -> Tensor:
        return bits_rows_reference(self.table, users.bitmask)


def bits_rows_reference(table: Tensor, bitmask: Tensor) -> Tensor:
    """Return the mask of each row.   int64 [rows, words], int64 [B, words] -> int16 [G, rows]"""
    check_bits(table, bitmask)
    passes = [((table & user) == user).all(dim=1) for user in bitmask]
    return pack_masks(torch.stack(passes))


def check_bits(table: Tensor, bitmask: Tensor) -> None:
    """Check that users' rows are as wide as the rules', in every body."""
    requests, words = len(bitmask), table.shape[1]
    require_tensor("users.bitmask", bitmask, torch.int64, requests=requests, words=words)
