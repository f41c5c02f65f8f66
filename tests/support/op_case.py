"""One set of inputs of an operation, and functions that make random ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from grace.model.definition.inputs import map_tensors

Rng: TypeAlias = np.random.Generator
Arguments: TypeAlias = Callable[[Rng, torch.dtype], tuple[Any, ...]]


@dataclass(frozen=True)
class OpCase:
    """`arguments` makes a call's positional arguments, with rows and weights of this type."""

    name: str
    arguments: Arguments
    low: bool = False  # Triton's interpreter tests it in 16 bits instead of float32


def normal(rng: Rng, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def row_scales(rng: Rng, count: int) -> Tensor:
    return torch.from_numpy(rng.uniform(0.5, 1.5, count).astype(np.float32))


def copied(value: Any, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Copy tensors with their strides: a slice stays a slice. Cast floats, if there is a type."""

    def copy(tensor: Tensor) -> Tensor:
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)
        return made.copy_(tensor)

    return map_tensors(value, copy)
