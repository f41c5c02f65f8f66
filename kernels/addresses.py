"""Tensors as compiled code takes them: by address, once they are known to be arrays."""

import torch
from torch import Tensor

from grace.kernels.decode.tensors import BloomTensors, QueryTensors

__all__ = ["address", "row_addresses", "set_addresses"]


def address(name: str, tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> int:
    """Of a tensor that is read as an array; 0 for none."""
    if tensor is None:
        return 0
    if tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} on {device}, got {tensor.dtype} on "
            f"{tensor.device}, strides {list(tensor.stride())}"
        )
    return tensor.data_ptr()


def row_addresses(
    name: str, index: Tensor, offsets: Tensor | None, device: torch.device
) -> tuple[int, int]:
    """Of a matcher's row ids, and of their offsets."""
    return (
        address(f"{name} index", index, device, torch.int32),
        address(f"{name} offsets", offsets, device, torch.int32),
    )


def set_addresses(
    bloom: BloomTensors, queries: QueryTensors, device: torch.device
) -> dict[str, int]:
    """What the structures of a set have in common, on any device."""
    return {
        "table": address("bloom table", bloom.table, device, torch.int64),
        "star": address("bloom star", bloom.star, device, torch.uint8),
        "offsets": address("offsets of queries", queries.offsets, device, torch.int32),
        "hashes": address("hashes of queries", queries.hashes, device, torch.int64),
        "bits": bloom.bits,
        "hashes_per_value": bloom.hashes,
    }
