"""What a step asks of a batch's users and snapshot, where both are known only when it runs.

A captured generation replays the same launches for every batch, while users, and after a swap the
snapshot, are others each time. So the steps ask a slot, and the slot is pointed at the batch's
users and index before each run; on a GPU that writes a few addresses into device memory.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from grace.kernels.decode.admit_children import admit_children_reference
from grace.kernels.decode.tensors import Candidates, DecodeIndex, UserTensors

__all__ = ["AdmissionSlot", "ReferenceSlot"]

Admit: TypeAlias = Callable[[Tensor, UserTensors, DecodeIndex], Candidates]


class AdmissionSlot(Protocol):
    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """From now on, in the order of the current stream. Both must outlive the runs after it."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        """As the operation of that name, of what the slot points at when this runs."""


class ReferenceSlot:
    """Runs at once, on any device; it cannot be captured."""

    def __init__(self, admit_children: Admit = admit_children_reference) -> None:
        self._admit_children = admit_children
        self._users: UserTensors | None = None
        self._index: DecodeIndex | None = None

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        self._users, self._index = users, index

    def admit_children(self, nodes: Tensor) -> Candidates:
        if self._users is None or self._index is None:
            raise RuntimeError("the slot points at nothing yet: call point_at before")
        return self._admit_children(nodes, self._users, self._index)
