"""The values that cross the model's stages, from a request's features to the user context.

Inputs are jagged: values of all requests side by side, with offsets. The features stage spreads
sequences to their declared maximum, so that every later shape depends on the batch size alone and a
request's numbers never depend on its neighbours.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.kernels import on_device
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)

__all__ = [
    "AGE_BUCKETS",
    "FeatureTensors",
    "JaggedIds",
    "ModelInputs",
    "SequenceEvents",
    "SequenceTensors",
    "UserContext",
    "age_buckets",
    "inputs_of_kind",
]

Kind = TypeVar("Kind", DenseInput, CategoricalInput, BagInput, SequenceInput)

AGE_BUCKETS = 44
"""No time, and the powers of two of milliseconds: the last bucket begins at 2^42 ms, 139 years."""


@dataclass(frozen=True, slots=True)
class JaggedIds:
    """
    offsets  int64 [B + 1]
    values   int64 [n]
    """

    offsets: Tensor
    values: Tensor

    def to(self, device: torch.device) -> "JaggedIds":
        return JaggedIds(on_device(self.offsets, device), on_device(self.values, device))


@dataclass(frozen=True, slots=True)
class SequenceEvents:
    """
    offsets      int64 [B + 1]   events of request b, at most max_length, oldest first
    sids         int64 [n, L]
    age_buckets  int64 [n]       0 without a time, else 1 + floor(log2(1 + ms to the newest event)),
                                 at most AGE_BUCKETS - 1
    side         int64 [n] each, in declared order; its cardinality stands for a missing one
    """

    offsets: Tensor
    sids: Tensor
    age_buckets: Tensor
    side: tuple[Tensor, ...]

    def to(self, device: torch.device) -> "SequenceEvents":
        return SequenceEvents(
            on_device(self.offsets, device),
            on_device(self.sids, device),
            on_device(self.age_buckets, device),
            tuple(on_device(ids, device) for ids in self.side),
        )

    def rows_and_places(self) -> tuple[Tensor, Tensor]:
        """Of each event: its request, and how many events of that request come before it."""
        events, batch = len(self.sids), len(self.offsets) - 1
        requests = torch.arange(batch, device=self.offsets.device)
        rows = torch.repeat_interleave(requests, self.offsets.diff(), output_size=events)
        return rows, torch.arange(events, device=rows.device) - self.offsets[rows]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """A batch, inputs of each kind in declared order.

    dense float32 [B, size] each; categorical int64 [B] each
    """

    batch: int
    dense: tuple[Tensor, ...]
    categorical: tuple[Tensor, ...]
    bags: tuple[JaggedIds, ...]
    sequences: tuple[SequenceEvents, ...]

    def to(self, device: torch.device) -> "ModelInputs":
        """Without waiting for the copies: what runs later on the same stream sees them."""
        return ModelInputs(
            self.batch,
            tuple(on_device(numbers, device) for numbers in self.dense),
            tuple(on_device(ids, device) for ids in self.categorical),
            tuple(ids.to(device) for ids in self.bags),
            tuple(events.to(device) for events in self.sequences),
        )


@dataclass(frozen=True, slots=True)
class SequenceTensors:
    """
    states  float [B, max_length, d]
    mask    bool [B, max_length]   True where there is an event
    """

    states: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class FeatureTensors:
    """What the features stage hands to the encoder.

    non_sequence  float [B, tokens, d], None for an encoder that has none (t5)
    """

    non_sequence: Tensor | None
    sequences: tuple[SequenceTensors, ...]


@dataclass(frozen=True, slots=True)
class UserContext:
    """
    states  float [B, T_ctx, d]
    mask    bool [B, T_ctx]   False keys are not attended to
    """

    states: Tensor
    mask: Tensor


def inputs_of_kind(spec: ModelSpec, kind: type[Kind]) -> list[tuple[str, Kind]]:
    """The declared inputs of one kind, with their names, in the order that batches have."""
    return [(name, value) for name, value in spec.inputs.items() if isinstance(value, kind)]


def age_buckets(ages_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """1 + floor(log2(1 + age)), at most AGE_BUCKETS - 1; 0 for an age of -1, which is no time."""
    _, exponents = np.frexp(ages_ms.astype(np.float64) + 1.0)  # 0 has exponent 0
    return np.minimum(exponents, AGE_BUCKETS - 1).astype(np.int64)
