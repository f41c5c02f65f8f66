"""The factor of an RMS norm, carried beside the rows instead of being applied to them."""

import torch
from torch import Tensor

__all__ = ["check_row_factors", "row_factors_reference"]


def row_factors_reference(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x_r^2) + eps) of every row, sums in float32.   [rows, d] -> float32 [rows]

    A linear map commutes with it: rms_norm(x) W = factor * (x diag(gain) W). So the gain goes into
    the weights once, and the factor to whoever reads the product.
    """
    check_row_factors(x)
    return torch.rsqrt(x.float().square().mean(dim=1) + eps)


def check_row_factors(x: Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"x must be [rows, d], got {list(x.shape)}")
