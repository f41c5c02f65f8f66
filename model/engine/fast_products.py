"""The matrix products of generation: weights [out, in] as they are stored, nothing copied.

On a GPU a residual is the product's own accumulator, so adding it costs no pass over memory, and
logits leave in float32 without a cast. On a CPU every product goes through `row_stable`.
"""

from typing import Protocol

import torch
from torch import Tensor

from grace.kernels.decode.lt_products import LtProducts
from grace.kernels.row_stable import linear

__all__ = [
    "PLAIN_PRODUCTS",
    "PlainProducts",
    "Products",
    "float_product",
    "product",
    "products_for",
]


class Products(Protocol):
    """Those that may be computed in more than one way."""

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out [rows, out] = x W^T, written where it stays."""

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        """residual [rows, out] += x W^T, in place."""


class PlainProducts:
    """As torch computes them."""

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        if x.device.type == "cpu":
            out.copy_(linear(x, weight))
        else:
            torch.mm(x, weight.t(), out=out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        if x.device.type == "cpu":
            residual.add_(linear(x, weight))
        else:
            residual.addmm_(x, weight.t())


PLAIN_PRODUCTS = PlainProducts()


def products_for(device: torch.device, dtype: torch.dtype) -> Products:
    return LtProducts(device) if LtProducts.fit(device, dtype) else PLAIN_PRODUCTS


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T.   x [rows, in], weight [out, in] -> [rows, out]"""
    return linear(x, weight)


def float_product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in float32, as it was accumulated.   -> float32 [rows, out]"""
    if x.device.type == "cpu" or x.dtype == torch.float32:
        return linear(x, weight).float()
    return torch.mm(x, weight.t(), out_dtype=torch.float32)
