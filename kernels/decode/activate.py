"""The hidden rows of a feed-forward network whose input was not normalised yet."""

import torch
from torch import Tensor

from grace.kernels.decode.shapes import require_tensor
from grace.kernels.row_stable import gelu

__all__ = ["activate_reference", "check_activation"]


def activate_reference(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
    """relu(r h), or gelu(r h_gate) * (r h_value) with the gate first, in float32.

    hidden     [rows, d_ff] for "relu", [rows, 2 * d_ff] for "gated_gelu"
    row_scale  float32 [rows]   r: an RMS factor not yet applied
    -> [rows, d_ff] in hidden's type
    """
    check_activation(hidden, row_scale, ffn)
    scaled = hidden.float() * row_scale.unsqueeze(1)
    if ffn == "relu":
        return torch.relu(scaled).to(hidden.dtype)
    gate, value = scaled.chunk(2, dim=1)
    return (gelu(gate) * value).to(hidden.dtype)


def check_activation(hidden: Tensor, row_scale: Tensor, ffn: str) -> None:
    if hidden.dim() != 2:
        raise ValueError(f"hidden must be [rows, d_ff], got {list(hidden.shape)}")
    rows, wide = hidden.shape
    require_tensor("row_scale", row_scale, torch.float32, rows=rows)
    if ffn != "relu" and (ffn != "gated_gelu" or wide % 2):
        raise ValueError(f"ffn must be relu, or gated_gelu of an even width, got {ffn} of {wide}")
