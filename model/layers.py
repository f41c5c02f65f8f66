"""What encoder and decoder layers of the T5 family share."""

import torch
from torch import Tensor

from kernels.row_stable import gelu, linear
from model.spec import Ffn

__all__ = ["feed_forward", "linear", "rms_norm"]


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain, the mean in float32.   [..., d] -> [..., d]"""
    square = x.to(torch.float32).square().mean(dim=-1, keepdim=True)
    return (x * torch.rsqrt(square + eps)).to(gain.dtype) * gain


def feed_forward(x: Tensor, weight_in: Tensor, weight_out: Tensor, kind: Ffn) -> Tensor:
    """relu(x W_in) W_out, or (gelu(x W_gate) * x W_linear) W_out with gelu's tanh form."""
    hidden = linear(x, weight_in)
    if kind == "relu":
        hidden = torch.relu(hidden)
    else:
        gate, value = hidden.chunk(2, dim=-1)
        hidden = gelu(gate) * value
    return linear(hidden, weight_out)
