"""The predicate of attributes: a rule's bitmask row has every bit that the user's row has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.tensors import pack_masks


@dataclass(frozen=True, slots=True)
class BitsPredicate:
    ids: Tensor  # int32 [rules] each rule's row
    table: Tensor  # int64 [rows, words]: the attribute values that a row allows

    def passes(self, users: UserTensors) -> Tensor:
        self.check(users)
        passes = [((self.table & user) == user).all(dim=1) for user in users.bitmask]
        return pack_masks(torch.stack(passes))

    def check(self, users: UserTensors) -> None:
        """Check that users' rows are as wide as the rules', in every body."""
        requests, words = len(users.bitmask), self.table.shape[1]
        require_tensor("users.bitmask", users.bitmask, torch.int64, requests=requests, words=words)
