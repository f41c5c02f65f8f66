"""RMS norms as factors of rows: computed once, and applied by the operation that reads the product.

A linear map commutes with the factor: rms_norm(x) W = factor * (x diag(gain) W). So the weights
contain the gain, and rows are never normalised in memory.
"""

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor, sizes_of
from grace.kernels.row_stable import gelu, sigmoid


def row_factors_reference(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x_r^2) + eps) of every row, in float32.   [rows, d] -> [rows]"""
    sizes_of("x", x, "rows d")
    return torch.rsqrt(x.float().square().mean(dim=1) + eps)


def activate_reference(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
    """Return the hidden rows of a feed-forward network whose input was not normalised yet.

    They are relu(r h), or gate(r h_gate) * (r h_value) with the gate first, in float32.

    hidden     [rows, d_ff] for "relu", [rows, 2 * d_ff] for "gated_gelu" and "gated_silu"
    row_scale  float32 [rows]   r: an RMS factor not yet applied
    -> [rows, d_ff] in hidden's type
    """
    check_activation(hidden, row_scale, ffn)
    scaled = hidden.float() * row_scale.unsqueeze(1)
    if ffn == "relu":
        return torch.relu(scaled).to(hidden.dtype)
    gate, value = scaled.chunk(2, dim=1)
    opened = gelu(gate) if ffn == "gated_gelu" else gate * sigmoid(gate)
    return (opened * value).to(hidden.dtype)


def check_activation(hidden: Tensor, row_scale: Tensor, ffn: str) -> None:
    rows, wide = sizes_of("hidden", hidden, "rows d_ff")
    require_tensor("row_scale", row_scale, torch.float32, rows=rows)
    if ffn != "relu" and (ffn not in ("gated_gelu", "gated_silu") or wide % 2):
        fault = "ffn must be relu, or gated_gelu or gated_silu of an even width"
        raise ValueError(f"{fault}, got {ffn} of {wide}")
