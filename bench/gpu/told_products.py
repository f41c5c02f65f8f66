"""The engine's matrix products as operations that torch's profiler tells with their shapes.

Some are launched through ctypes (kernels.lt_products), where a profiler sees a kernel and no
operation. Inside an operator of torch's, the kernel is that operator's.
"""

from typing import Any

import torch
from torch import Tensor

from grace.model.engine.decode_weights import Products

__all__ = ["ADD", "INTO", "TOLD", "ToldProducts"]

_SPACE = "grace_bench"
INTO, ADD = f"{_SPACE}::product_into", f"{_SPACE}::product_add"
TOLD = (INTO, ADD)
"""The operators' names. Arguments: rows [m, k], weight [n, k] and what is written, [m, n]."""


class ToldProducts:
    """One at a time: the operators are the process's."""

    def __init__(self, products: Products) -> None:
        self._library: Any = torch.library.Library(_SPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
        for name, run in (
            ("product_into", products.into),
            ("product_add", lambda x, weight, out: products.add(out, x, weight)),
        ):
            self._library.define(f"{name}(Tensor x, Tensor weight, Tensor(a!) out) -> ()")  # type: ignore[no-untyped-call]
            self._library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        torch.ops.grace_bench.product_into(x, weight, out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        torch.ops.grace_bench.product_add(x, weight, residual)

    def close(self) -> None:
        """The operators are gone, and may be made again."""
        self._library._destroy()  # noqa: SLF001
