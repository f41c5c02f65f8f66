"""Operations whose result for a row does not depend on where in a batch the row stands.

A request must get the same bits at any row of its batch. A GPU computes every output element with
the same instructions; on a CPU three habits of the libraries break that, and are avoided here:

* A matrix product sums in another order for rows that do not begin on a vector's boundary, and for
  the rows that are left over when threads share the others. So rows begin every 16 floats and come
  in multiples of 16: zeros are added where a shape is not so already, which costs a copy.
* A vectorised sigmoid, GELU or SiLU computes the last few elements of a thread's share by a scalar
  formula that rounds differently. tanh and exp have no such tail, so formulas here use tanh.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["gelu", "linear", "matmul", "sigmoid"]

ALIGNMENT = 16  # float32 numbers in a cache line, the widest vector


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T.   x [..., in], weight [out, in] -> [..., out]"""
    wide = x.shape[-1]
    rows = x.shape[:-1].numel()
    missing_rows, missing = -rows % ALIGNMENT, -wide % ALIGNMENT
    if x.device.type != "cpu" or not (missing_rows or missing):
        return functional.linear(x, weight)
    flat = functional.pad(x.reshape(rows, wide), (0, missing, 0, missing_rows))
    if missing:
        weight = functional.pad(weight, (0, missing))
    return functional.linear(flat, weight)[:rows].view(*x.shape[:-1], len(weight))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A product for every request and head.   a [..., m, k], b [..., k, n] -> [..., m, n]"""
    inner, outputs = b.shape[-2:]
    missing, missing_outputs = -inner % ALIGNMENT, -outputs % ALIGNMENT
    if a.device.type != "cpu" or not (missing or missing_outputs):
        return a @ b
    padded = functional.pad(a, (0, missing)) @ functional.pad(b, (0, missing_outputs, 0, missing))
    return padded[..., :outputs]


def gelu(x: Tensor) -> Tensor:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2"""
    if x.device.type != "cpu":
        return functional.gelu(x, approximate="tanh")
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3))))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), as (1 + tanh(x / 2)) / 2"""
    return 0.5 * (1.0 + torch.tanh(0.5 * x))
