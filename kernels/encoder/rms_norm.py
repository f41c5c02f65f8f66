"""The RMS norm of an encoder's rows."""

import torch
from torch import Tensor

from grace.kernels.decode.shapes import require_tensor

__all__ = ["check_rms_norm", "rms_norm_reference"]


def rms_norm_reference(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain, the mean in float32.   [..., d], [d] -> [..., d]"""
    check_rms_norm(x, gain)
    square = x.to(torch.float32).square().mean(dim=-1, keepdim=True)
    return (x * torch.rsqrt(square + eps)).to(gain.dtype) * gain


def check_rms_norm(x: Tensor, gain: Tensor) -> None:
    require_tensor("gain", gain, d=x.shape[-1])
