"""The engine's matrix products as torch operators, which the profiler reports with their shapes.

Some are launched through ctypes, where a profiler sees a kernel but no operation. Inside a torch
operator, the kernel is the operator's. The operators belong to the process, so only one context of
each kind can be open.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grace.kernels.products.fp8_products import (
    Addition,
    RoundedOps,
    RoundedRows,
    RoundedWeight,
)
from grace.model.engine.decode_weights import Products

_NAMESPACE = "grace_bench"
INTO, ADD = f"{_NAMESPACE}::product_into", f"{_NAMESPACE}::product_add"
"""Operators of `named_products`: rows [m, k], weight [n, k] and the output [m, n]."""

ROUNDED, ROUNDED_ADD, HIDDEN = (
    f"{_NAMESPACE}::{name}" for name in ("rounded_product", "rounded_add", "rounded_hidden")
)
"""Operators of `named_rounded`: rows [m, k] and weight [n, k] in e4m3."""


@contextmanager
def named_products(products: Products) -> Iterator[Products]:
    """Name the plain products."""
    library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, run in (
        ("product_into", products.into),
        ("product_add", lambda x, weight, out: products.add(out, x, weight)),
    ):
        library.define(f"{name}(Tensor x, Tensor weight, Tensor(a!) out) -> ()")
        library.impl(name, run, "CompositeExplicitAutograd")

    class Named:
        def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
            torch.ops.grace_bench.product_into(x, weight, out)

        def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
            torch.ops.grace_bench.product_add(x, weight, residual)

    try:
        yield Named()
    finally:
        library._destroy()  # noqa: SLF001


@contextmanager
def named_rounded(ops: RoundedOps | None) -> Iterator[RoundedOps | None]:
    """Name the products with rounded weights."""
    if ops is None:
        yield None
        return
    given: RoundedOps = ops

    def product(x: Tensor, weight: Tensor, scales: Tensor, out: Tensor) -> None:
        given.product(x, RoundedWeight(weight, scales), out)

    def add(
        x: Tensor, weight: Tensor, scales: Tensor, rows: Tensor, factors: Tensor,
        request_scales: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        by = RoundedWeight(weight, scales)
        new = given.add_product(Addition(rows, factors, x, by, request_scales, eps))
        return new.row_factors, new.rounded, new.rounded_factors

    def hidden(x: Tensor, weight: Tensor, scales: Tensor, rows: Tensor, factors: Tensor) -> Tensor:
        return given.hidden(RoundedRows(rows, factors, x, factors), RoundedWeight(weight, scales))

    library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    operands, own = "Tensor x, Tensor weight, Tensor scales", torch.ops.grace_bench
    more, three = "Tensor? request_scales, float eps", "(Tensor, Tensor, Tensor)"
    for name, run, others in (
        ("rounded_product", product, "Tensor(a!) out) -> ()"),
        ("rounded_add", add, f"Tensor(a!) rows, Tensor factors, {more}) -> {three}"),
        ("rounded_hidden", hidden, "Tensor rows, Tensor factors) -> Tensor"),
    ):
        library.define(f"{name}({operands}, {others}")
        library.impl(name, run, "CompositeExplicitAutograd")

    def named_product(x: Tensor, weight: RoundedWeight, out: Tensor) -> None:
        own.rounded_product(x, weight.rounded, weight.scales, out)

    def named_add(by: Addition) -> RoundedRows:
        weight, rows = by.weight, (by.rows, by.row_factors)
        after, copy, of_copy = own.rounded_add(
            by.rounded, weight.rounded, weight.scales, *rows, by.request_scales, by.eps
        )
        return RoundedRows(by.rows, after, copy, of_copy)

    def named_hidden(rows: RoundedRows, weight: RoundedWeight) -> Tensor:
        factors = rows.rounded_factors
        found: Tensor = own.rounded_hidden(
            rows.rounded, weight.rounded, weight.scales, rows.rows, factors
        )
        return found

    try:
        yield replace(ops, product=named_product, add_product=named_add, hidden=named_hidden)
    finally:
        library._destroy()  # noqa: SLF001
