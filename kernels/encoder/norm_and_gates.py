"""The RMS norm and the gates of an encoder's tokens."""

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.row_stable import sigmoid


def rms_norm_reference(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * gain, the mean in float32.   [..., d], [d] -> [..., d]"""
    check_rms_norm(x, gain)
    square = x.to(torch.float32).square().mean(dim=-1, keepdim=True)
    return (x * torch.rsqrt(square + eps)).to(gain.dtype) * gain


def check_rms_norm(x: Tensor, gain: Tensor) -> None:
    require_tensor("gain", gain, d=x.shape[-1])


def gate(x: Tensor, opening: Tensor) -> Tensor:
    """Return x * sigmoid(opening).   both [B, T, d] -> [B, T, d]"""
    return x * sigmoid(opening)
