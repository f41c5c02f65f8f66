"""The residual stream of a step's beam rows, and the products that read it or add to it.

The weight decides how a product is computed. Plain weights multiply the rows, rounded weights the
rows' rounded copy. The addition of a rounded product makes the next copy. After any other change,
the copy is made when a product needs it.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from grace.kernels import Ops
from grace.kernels.products import fp8_products as fp8
from grace.kernels.row_stable import linear

Weight: TypeAlias = Tensor | fp8.RoundedWeight


class Products:
    """The products of beam rows with plain weights [out, in]; on a CPU through `row_stable`.

    On a GPU a residual is the product's accumulator: adding it costs no pass over memory.
    """

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x W^T to `out`, [rows, out]."""
        if x.device.type == "cpu":
            out.copy_(linear(x, weight))
        else:
            torch.mm(x, weight.t(), out=out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        """Add x W^T to `residual`, [rows, out], in place."""
        if x.device.type == "cpu":
            residual.add_(linear(x, weight))
        else:
            residual.addmm_(x, weight.t())


class LayerSpec(Protocol):
    @property
    def norm_eps(self) -> float: ...
    @property
    def ffn(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWeights:
    """The weights of any family, as far as a stream needs them."""

    spec: LayerSpec
    embed: Tensor  # in the type of all weights that are not rounded
    products: Products = field(default_factory=Products)
    rounded: fp8.RoundedOps | None = None  # the products with rounded weights; None without them
    clipped: Tensor | None = None  # int64 [1]: the count of numbers that e4m3 clipped

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype


class Residual:
    """Rows [rows, d] in the weights' type, which `add` changes in place."""

    def __init__(
        self, rows: Tensor, weights: StreamWeights, ops: Ops, *, grows: bool = False
    ) -> None:
        """`grows`: any addition may make a row many times as large, not only the first one."""
        self.rows = rows
        self._grows = grows
        self._weights, self._ops, self._eps = weights, ops, weights.spec.norm_eps
        self._factors: Tensor | None = None
        self._copy: fp8.RoundedRows | None = None
        self._is_changed = False

    @property
    def row_factors(self) -> Tensor:
        """The rows' RMS factors.   float32 [rows]"""
        if self._factors is None:
            self._factors = self._ops.row_factors(self.rows, self._eps)
        return self._factors

    def product(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """Return the product with a weight, without its row factors, and the factors."""
        if isinstance(weight, fp8.RoundedWeight):
            out = self.rows.new_empty((len(self.rows), len(weight)))
            return out, self.into(weight, out)
        return linear(self.rows, weight), self.row_factors

    def into(self, weight: Weight, out: Tensor) -> Tensor:
        """Write the product with a weight to `out`, [rows, out], and return its row factors."""
        if isinstance(weight, fp8.RoundedWeight):
            copy = self._rounded()
            self._rounded_ops.product(copy.rounded, weight, out)
            return copy.rounded_factors
        self._weights.products.into(self.rows, weight, out)
        return self.row_factors

    def add(self, x: Tensor, weight: Weight, request_scales: Tensor | None = None) -> None:
        """Add x W^T. `x` has the weight's `input_type`; `request_scales` are for rounded ones."""
        if isinstance(weight, fp8.RoundedWeight):
            before, repairs = self.row_factors, self._grows or not self._is_changed
            counter = None if repairs else self._weights.clipped
            self._copy = self._rounded_ops.add_product(
                fp8.Addition(self.rows, before, x, weight, request_scales, self._eps, counter)
            )
            if repairs:
                self._rounded_ops.round_grown(self._copy, before)
            self._factors = self._copy.row_factors
        else:
            self._weights.products.add(self.rows, x, weight)
            self._copy = self._factors = None
        self._is_changed = True

    def hidden(self, weight: Weight) -> Tensor:
        """Return the hidden rows of a feed-forward network, for a second product with them."""
        if isinstance(weight, fp8.RoundedWeight):
            return self._rounded_ops.hidden(self._rounded(), weight, self._weights.spec.ffn)
        product, factors = self.product(weight)
        return self._ops.activate(product, factors, self._weights.spec.ffn)

    def logits(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product with a head in float32, without its row factors, and the factors."""
        if self.rows.device.type == "cpu" or self.rows.dtype == torch.float32:
            return linear(self.rows, head).float(), self.row_factors
        # A GPU accumulates in float32, so there is no cast.
        return torch.mm(self.rows, head.t(), out_dtype=torch.float32), self.row_factors

    def log_sums(self, head: Weight, tokens: int) -> Tensor:
        """Return each row's log of the sum of exp of its logits, over `tokens`.   float32 [rows]"""
        if isinstance(head, fp8.RoundedWeight):
            return self._rounded_ops.log_sums(self._rounded(), head, tokens)
        return self._ops.log_sums(self.rows, head, self.row_factors)

    @property
    def _rounded_ops(self) -> fp8.RoundedOps:
        assert self._weights.rounded is not None
        return self._weights.rounded

    def _rounded(self) -> fp8.RoundedRows:
        if self._copy is None:
            self._copy = self._rounded_ops.round_rows(self.rows, self._eps)
            self._factors = self._copy.row_factors
        return self._copy


def input_type(weight: Weight) -> torch.dtype:
    """Return the type of rows that a weight multiplies."""
    return fp8.E4M3 if isinstance(weight, fp8.RoundedWeight) else weight.dtype
