"""Operations that return the same bits for a row wherever in a batch the row is.

A GPU computes every output element with the same instructions. On a CPU the libraries do not:

* A matrix product sums rows in another order if they do not begin on a vector's boundary, or if
  threads cannot share them evenly. So rows are padded with zeros to multiples of 16 floats, and
  their number to a multiple of 16. Padding costs a copy.
* A vectorised sigmoid, GELU or SiLU rounds the last few elements of a thread's share differently.
  tanh and exp do not, so the formulas here use tanh.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.checks import require_tensor

ALIGNMENT = 16  # float32 numbers in a cache line, the widest vector


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b.   x [..., in], weight [out, in], bias [out] -> [..., out]"""
    wide = x.shape[-1]
    rows = x.shape[:-1].numel()
    missing_rows, missing = -rows % ALIGNMENT, -wide % ALIGNMENT
    if x.device.type != "cpu" or not (missing_rows or missing):
        return functional.linear(x, weight, bias)
    flat = functional.pad(x.reshape(rows, wide), (0, missing, 0, missing_rows))
    if missing:
        weight = functional.pad(weight, (0, missing))
    return functional.linear(flat, weight, bias)[:rows].view(*x.shape[:-1], len(weight))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of every request and head.   [..., m, k], [..., k, n] -> [..., m, n]"""
    inner, outputs = b.shape[-2:]
    missing, missing_outputs = -inner % ALIGNMENT, -outputs % ALIGNMENT
    if a.device.type != "cpu" or not (missing or missing_outputs):
        return a @ b
    padded = functional.pad(a, (0, missing)) @ functional.pad(b, (0, missing_outputs, 0, missing))
    return padded[..., :outputs]


def masked_softmax(scores: Tensor, key_mask: Tensor) -> Tensor:
    """Return the weights of keys, zeros without any.   [B, H, Q, K], bool [B, K] -> [B, H, Q, K]"""
    ignored = ~key_mask[:, None, None, :]
    # The least finite number, not -inf: without any key the weights are even, not NaN.
    scores = scores.masked_fill(ignored, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(ignored, 0.0)


def gelu(x: Tensor) -> Tensor:
    """Return x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2"""
    if x.device.type != "cpu":
        return functional.gelu(x, approximate="tanh")
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3))))


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)) as (1 + tanh(x / 2)) / 2."""
    return 0.5 * (1.0 + torch.tanh(0.5 * x))


def rms_norm_reference(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * gain, the mean in float32.   [..., d], [d] -> [..., d]"""
    require_tensor("gain", gain, d=x.shape[-1])
    if x.device.type != "cpu" and x.dtype == gain.dtype:
        return functional.rms_norm(x, gain.shape, gain, eps)
    square = x.to(torch.float32).square().mean(dim=-1, keepdim=True)
    return (x * torch.rsqrt(square + eps)).to(gain.dtype) * gain


def gate(x: Tensor, opening: Tensor) -> Tensor:
    """Return x * sigmoid(opening).   both [B, T, d] -> [B, T, d]"""
    return x * sigmoid(opening)
