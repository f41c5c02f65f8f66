"""The user rows of a batch on one device: what predicates and matchers ask about."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.index.forms.bits import AskedBits
from grace.index.forms.lists import AskedLists
from grace.index.users.user_rows import UserRows


@dataclass(frozen=True, slots=True)
class UserTensors:
    """The user rows of B requests."""

    # what they ask of each component: a NamedTuple of its form, here of tensors
    asked: tuple[Any, ...]
    # int16 [ceil(B / 16), masks], mode `exact`: bit b % 16 of [b // 16, node] says whether an ad
    # below the inner node is eligible for request b, and [b // 16, first leaf + rule] whether it
    # passes the rule
    eligible: Tensor | None = None
    # the components of which every request passes all rows, so nothing tests them
    unasked: frozenset[int] = frozenset()

    @staticmethod
    def of(users: UserRows, device: torch.device) -> "UserTensors":
        """Copy without waiting: work queued later on the same stream sees the copies."""
        arrays = (
            each.view(np.int64) if each.dtype == np.uint64 else each  # 64 bits as torch reads them
            for each in users.arrays()
        )
        return UserTensors.given(users, (on_device(torch.from_numpy(a), device) for a in arrays))

    @staticmethod
    def given(users: UserRows, tensors: Iterable[Tensor]) -> "UserTensors":
        """Return the user rows as tensors, one for each of their arrays."""
        each = iter(tensors)
        made = tuple(asked._make(islice(each, len(asked))) for asked in users.asked)
        return UserTensors(made, unasked=users.unasked())

    @staticmethod
    def asking(bitmask: Tensor, *sets: AskedLists[Tensor]) -> "UserTensors":
        """Return users of a schema with these sets.   bitmask int64 [B, words]"""
        return UserTensors((AskedBits(bitmask), *sets))

    @property
    def bitmask(self) -> Tensor:
        """What they ask of the attributes.   int64 [B, words]"""
        bits: Tensor = self.asked[0].bitmask
        return bits

    def asked_of(self, component: int) -> Any:
        if component >= len(self.asked):
            raise ValueError(
                f"users.asked: there are {len(self.asked)} components, and the snapshot has at "
                f"least {component + 1}: encode users with the snapshot's schema"
            )
        return self.asked[component]

    @property
    def sets(self) -> tuple[AskedLists[Tensor], ...]:
        return tuple(asked for asked in self.asked if isinstance(asked, AskedLists))


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor from the CPU's memory without waiting for the device."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if tensor.device == device else tensor.to(device)
