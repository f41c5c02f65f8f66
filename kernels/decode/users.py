"""The user rows of a batch on one device: what predicates and matchers ask about."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.index.users.user_rows import UserRows


@dataclass(frozen=True, slots=True)
class QueryTensors:
    """What B requests ask about one set.

    offsets        int32 [B + 1]
    hashes         int64 [...]     Bloom queries, one per distinct value of a request
    value_offsets  int32 [B + 1]
    values         int32 [...]     ids of the values that some rule names, ascending per request
    """

    offsets: Tensor
    hashes: Tensor
    value_offsets: Tensor
    values: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order of the constructor's arguments."""
        return (self.offsets, self.hashes, self.value_offsets, self.values)


@dataclass(frozen=True, slots=True)
class UserTensors:
    """The user rows of B requests.

    bitmask   int64 [B, words]
    eligible  int16 [ceil(B / 16), nodes]   mode `exact`: bit b % 16 of [b // 16, node] says whether
                                            an ad below the node is eligible for request b
    """

    bitmask: Tensor
    sets: tuple[QueryTensors, ...]
    eligible: Tensor | None = None

    @staticmethod
    def of(users: UserRows, device: torch.device) -> "UserTensors":
        """Copy without waiting: work queued later on the same stream sees the copies."""
        return UserTensors(
            on_device(torch.from_numpy(users.bitmask.view(np.int64)), device),
            tuple(
                QueryTensors(
                    on_device(torch.from_numpy(s.offsets), device),
                    on_device(torch.from_numpy(s.hashes.view(np.int64)), device),
                    on_device(torch.from_numpy(s.value_offsets), device),
                    on_device(torch.from_numpy(s.value_ids), device),
                )
                for s in users.sets
            ),
        )


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor from the CPU's memory without waiting for the device."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if tensor.device == device else tensor.to(device)
