"""Batches of users and contexts that take turns in one recorded search.

A graph reads a context where it lay when it was recorded, and users where its slot points. The next
batch is put there between two runs, outside of what is timed: a copy of a few megabytes and a
kernel that tells the slot, as the server does it before a replay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from grace.kernels import UserTensors
from grace.model.definition.inputs import UserContext

__all__ = ["BATCHES", "DecoderBatch", "Rotation"]

BATCHES = 4


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """What a decoder is given: the context in float32 or in its own precision."""

    context: UserContext
    users: UserTensors


class Rotation:
    """Call it to put the next batch where `context` is; the first is there already."""

    def __init__(
        self,
        batches: Sequence[DecoderBatch],
        dtype: torch.dtype,
        point_at: Callable[[UserTensors], None],
    ) -> None:
        self._states = [batch.context.states.to(dtype) for batch in batches]
        self._masks = [batch.context.mask for batch in batches]
        self._users = [batch.users for batch in batches]
        self._point_at = point_at
        self._next = 0
        self.context = UserContext(self._states[0].clone(), self._masks[0].clone())
        self()

    def __call__(self) -> None:
        self.put(self._next)

    @torch.inference_mode()
    def put(self, number: int) -> None:
        self.context.states.copy_(self._states[number])
        self.context.mask.copy_(self._masks[number])
        self._point_at(self._users[number])
        self._next = (number + 1) % len(self._users)
