"""The values that pass between the model's stages, from a request's features to the user context.

Inputs are jagged: they hold the values of all requests one after another, with offsets. The
features stage pads sequences to their declared maximum. Every later shape then depends on the
batch size alone, so a request's numbers never depend on its neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from grace.kernels import on_device

Value = TypeVar("Value")

AGE_BUCKETS = 44
"""Bucket 0 is "no time"; the others are powers of two of milliseconds, up to 2^42 ms, 139 years."""


@dataclass(frozen=True, slots=True)
class JaggedIds:
    """The ids of B requests."""

    offsets: Tensor  # int64 [B + 1]
    values: Tensor  # int64 [n]


@dataclass(frozen=True, slots=True)
class Prompts(JaggedIds):
    """The prompts of B requests as tokens, each of at least one: what a causal decoder reads."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class SequenceEvents:
    """One event sequence of B requests, each with at most max_length events, oldest first."""

    offsets: Tensor  # int64 [B + 1]
    sids: Tensor  # int64 [n, L]
    # int64 [n]: 0 without a time, else 1 + floor(log2(1 + ms to the newest event)), at most
    # AGE_BUCKETS - 1
    age_buckets: Tensor
    # int64 [n] each, in declared order; a missing id is the side's cardinality
    side: tuple[Tensor, ...]

    def rows_and_places(self) -> tuple[Tensor, Tensor]:
        """Return each event's request, and the number of that request's earlier events."""
        events, batch = len(self.sids), len(self.offsets) - 1
        requests = torch.arange(batch, device=self.offsets.device)
        rows = torch.repeat_interleave(requests, self.offsets.diff(), output_size=events)
        return rows, torch.arange(events, device=rows.device) - self.offsets[rows]

    @property
    def width(self) -> int | None:
        """The number of places for each request's events, or None for the declared maximum."""
        return None


@dataclass(frozen=True, slots=True)
class PaddedEvents(SequenceEvents):
    """Events padded to the same number of places per request. The offsets count the real events.

    No shape depends on the events, so one CUDA graph fits all batches of one size and width.
    """

    def rows_and_places(self) -> tuple[Tensor, Tensor]:
        places = torch.arange(len(self.sids), device=self.offsets.device)
        return places // self.width, places % self.width

    @property
    def width(self) -> int:
        return len(self.sids) // (len(self.offsets) - 1)


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The inputs of a batch, those of each kind in declared order."""

    batch: int
    dense: tuple[Tensor, ...]  # float32 [B, size] each
    categorical: tuple[Tensor, ...]  # int64 [B] each
    bags: tuple[JaggedIds, ...]  # a causal model has its prompts here
    sequences: tuple[SequenceEvents, ...]

    def to(self, device: torch.device) -> "ModelInputs":
        """Start the copies without waiting: later work on the same stream sees them."""
        return map_tensors(self, lambda tensor: on_device(tensor, device))


@dataclass(frozen=True, slots=True)
class SequenceTensors:
    """One event sequence of a batch, padded."""

    states: Tensor  # float [B, max_length, d]
    mask: Tensor  # bool [B, max_length]: True where there is an event


@dataclass(frozen=True, slots=True)
class FeatureTensors:
    """The output of the features stage, which the encoder reads."""

    non_sequence: Tensor | None  # float [B, tokens, d]; None for the t5 encoder, which has none
    sequences: tuple[SequenceTensors, ...]

    def to(self, dtype: torch.dtype) -> "FeatureTensors":
        """Cast everything but the masks."""
        return map_tensors(self, lambda x: x.to(dtype) if x.is_floating_point() else x)


@dataclass(frozen=True, slots=True)
class UserContext:
    """The output of the encoder, which cross-attention reads."""

    states: Tensor  # float [B, T_ctx, d]
    mask: Tensor  # bool [B, T_ctx]: cross-attention ignores keys that are False

    def __len__(self) -> int:
        return len(self.states)


def map_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Return the value with every tensor changed, also inside dataclasses and tuples."""
    changed: object = value
    if isinstance(value, Tensor):
        changed = change(value)
    elif isinstance(value, tuple):
        items = [map_tensors(item, change) for item in value]
        changed = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    elif is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
        changed = replace(value, **{n: map_tensors(getattr(value, n), change) for n in names})
    return changed  # type: ignore[return-value]
