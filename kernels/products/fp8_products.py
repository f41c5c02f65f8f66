"""Products of rows and weights rounded to e4m3, an 8-bit float, and what a layer does with them.

A weight is rounded once, with a scale per output channel. The operation that computes rows rounds
them. The residual stream stays in bfloat16 and has a rounded copy: an addition rounds its new rows
times twice the RMS factor of the old ones. So no operation looks for a row's largest number.
Numbers above 448, the largest in e4m3, become 448. No number of a row exceeds its norm, so only a
row that outgrew its scale can have such numbers. The first addition may make a row many times as
large as before, so `round_grown` follows it; later ones count what they clip.

Rounded columns are in the order in which a GPU's threads hold them: within 128 columns, column
8 j + 2 q + e is at 32 q + 2 j + e. A weight that is multiplied by them has its columns in the same
order (`RoundedWeight.of`), so the order changes no sum. A gated hidden row has half the columns of
its product: within 64 columns, column 4 i + q is at 16 q + i.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor, sizes_of
from grace.kernels.products.row_factors import row_factors_reference
from grace.kernels.row_stable import linear, sigmoid

E4M3 = torch.float8_e4m3fn
LARGEST, LARGEST_BITS = 448.0, 0x7E  # the largest number of e4m3

ORDERED = 128
"""Number of columns that are reordered together. The width of rounded rows is a multiple of it."""

GATED = 64
"""The same for gated hidden rows."""

Order: TypeAlias = Literal["plain", "ordered", "gated"]
"""The order of columns: unchanged, that of rounded rows, or that of gated hidden rows."""

HEADROOM = 2.0  # the scale of a row, divided by its RMS factor before the last addition


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A weight [outs, inner] in e4m3, with one scale per output channel."""

    rounded: Tensor  # e4m3 [outs, inner]
    scales: Tensor  # float32 [outs]: the weight is about rounded * scales

    @staticmethod
    def of(weight: Tensor, *, reads: Order) -> "RoundedWeight":
        """Round a weight that multiplies rows whose columns have this order."""
        weight = weight.float()
        scales = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
        rounded = to_e4m3(weight / scales.unsqueeze(1))
        return RoundedWeight(_ORDERS[reads](rounded), scales)

    def __len__(self) -> int:
        return len(self.rounded)


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """The residual stream, and its rounded copy."""

    rows: Tensor  # bfloat16 [rows, d]
    row_factors: Tensor  # float32 [rows]: the RMS factors of rows, and so of their products
    rounded: Tensor  # e4m3 [rows, d]: rows times a scale, with ordered columns
    # float32 [rows], the RMS factors of products of `rounded`: of rows over scale
    rounded_factors: Tensor


@dataclass(frozen=True, slots=True)
class Addition:
    """A product x W^T, and the residual stream to add it to."""

    rows: Tensor  # bfloat16 [rows, outs]
    row_factors: Tensor  # float32 [rows]: the RMS factors of rows before
    rounded: Tensor  # e4m3 [rows, inner]: x
    weight: RoundedWeight
    # float32 [requests]: multiply the product; a request's rows follow one another, equally many
    # for each
    request_scales: Tensor | None
    eps: float
    clipped: Tensor | None = None  # int64 [1]: the count of rounded numbers that became LARGEST

    def check(self) -> None:
        check_product(self.rounded, self.weight)
        count, scales = len(self.rounded), self.request_scales
        require_tensor("rows", self.rows, torch.bfloat16, rows=count, outs=len(self.weight))
        require_tensor("row_factors", self.row_factors, torch.float32, rows=count)
        if scales is not None:
            requests = len(scales)
            require_tensor("request_scales", scales, torch.float32, requests=requests)
            if requests == 0 or count % requests:
                raise ValueError(f"rows must be equally many per request: {count} of {requests}")
        if self.clipped is not None:
            require_tensor("clipped", self.clipped, torch.int64, counters=1)


@dataclass(frozen=True, slots=True)
class RoundedOps:
    """One body of each operation. The function `..._reference` defines what it computes."""

    round_rows: Callable[[Tensor, float], RoundedRows]  # (rows, eps)
    product: Callable[[Tensor, RoundedWeight, Tensor], None]  # (rounded, weight, out)
    add_product: Callable[[Addition], RoundedRows]
    round_grown: Callable[[RoundedRows, Tensor], None]  # (rows, their row factors before)
    hidden: Callable[[RoundedRows, RoundedWeight, str], Tensor]  # (rows, weight, ffn)
    log_sums: Callable[[RoundedRows, RoundedWeight, int], Tensor]  # (rows, weight, tokens)


def to_e4m3(x: Tensor) -> Tensor:
    """Round to e4m3. A number beyond the largest becomes the largest, NaN stays NaN."""
    return x.float().clamp(-LARGEST, LARGEST).to(E4M3)


def divisors(bounds: Tensor, largest: float = LARGEST) -> Tensor:
    """Return divisors that bring numbers with these bounds to at most `largest`; none is zero."""
    return torch.where(bounds > 0, bounds, torch.ones_like(bounds)) / largest


def in_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to any type; to e4m3 as `to_e4m3` does."""
    return to_e4m3(x) if dtype == E4M3 else x.to(dtype)


def require_ordered(name: str, columns: int) -> None:
    if columns % ORDERED:
        raise ValueError(f"{name} must have a multiple of {ORDERED} columns, got {columns}")


def ordered(rounded: Tensor) -> Tensor:
    """Return rows of e4m3 with their columns in the threads' order."""
    rows, columns = rounded.shape
    require_ordered("rounded rows", columns)
    parts = rounded.view(torch.uint8).view(rows, columns // ORDERED, ORDERED // 8, 4, 2)
    return parts.transpose(2, 3).reshape(rows, columns).view(E4M3)


def gated_order(rounded: Tensor) -> Tensor:
    """Return rows of e4m3 with their columns in the order of gated hidden rows."""
    rows, columns = rounded.shape
    parts = rounded.view(torch.uint8).view(rows, columns // GATED, GATED // 4, 4)
    return parts.transpose(2, 3).reshape(rows, columns).view(E4M3)


_ORDERS: Mapping[Order, Callable[[Tensor], Tensor]] = {
    "plain": lambda rounded: rounded,
    "ordered": ordered,
    "gated": gated_order,
}


def round_rows_reference(rows: Tensor, eps: float) -> RoundedRows:
    """Round rows, with twice their own RMS factors as scales."""
    factors = row_factors_reference(rows, eps)
    rounded = ordered(to_e4m3(rows.float() * (HEADROOM * factors).unsqueeze(1)))
    return RoundedRows(rows, factors, rounded, torch.full_like(factors, 1.0 / HEADROOM))


def product_reference(rounded: Tensor, weight: RoundedWeight, out: Tensor) -> None:
    """Write the product x W^T to `out`, bfloat16 [rows, outs]."""
    check_product(rounded, weight)
    require_tensor("out", out, torch.bfloat16, rows=len(rounded), outs=len(weight))
    out.copy_(_product(rounded, weight))


def add_product_reference(given: Addition) -> RoundedRows:
    """Add x W^T to the residual stream in place, and return it with its new rounded copy."""
    given.check()
    added = _product(given.rounded, given.weight)
    if given.request_scales is not None:
        repeats = len(added) // len(given.request_scales)
        added = added * given.request_scales.repeat_interleave(repeats).unsqueeze(1)
    new = given.rows.float() + added
    scales = HEADROOM * given.row_factors
    factors = row_factors_reference(new, given.eps)
    copy = ordered(to_e4m3(new * scales.unsqueeze(1)))
    if given.clipped is not None:
        numbers = copy.view(torch.uint8)[outgrew(given.row_factors, factors, new.shape[1])]
        given.clipped.add_((numbers & 0x7F == LARGEST_BITS).sum())
    return RoundedRows(given.rows.copy_(new), factors, copy, factors / scales)


def outgrew(before: Tensor, factors: Tensor, d: int) -> Tensor:
    """Return which rows have a norm above LARGEST, by the scale from before the addition."""
    return (before * HEADROOM).square() * d > (factors * LARGEST).square()


def round_grown_reference(rows: RoundedRows, before: Tensor) -> None:
    """Round again, with new scales, the rows that outgrew their scales.

    before  float32 [rows]   the RMS factors of the rows before the addition
    """
    require_tensor("before", before, torch.float32, rows=len(rows.rows))
    grown = outgrew(before, rows.row_factors, rows.rows.shape[1])
    scales = HEADROOM * rows.row_factors[grown]
    again = ordered(to_e4m3(rows.rows[grown].float() * scales.unsqueeze(1)))
    rows.rounded.view(torch.uint8)[grown] = again.view(torch.uint8)
    rows.rounded_factors[grown] = 1.0 / HEADROOM


def hidden_reference(rows: RoundedRows, weight: RoundedWeight, ffn: str) -> Tensor:
    """Return the rounded hidden rows of a feed-forward network for normalised rows.

    relu        the ReLU of x W^T       -> e4m3 [rows, outs], ordered
    gated_silu  silu(gate) * value, whose products are neighbours in x W^T
                                        -> e4m3 [rows, outs / 2], in the gated order
    """
    check_product(rows.rounded, weight)
    product = _product(rows.rounded, weight) * rows.rounded_factors.unsqueeze(1)
    if ffn == "relu":
        return ordered(to_e4m3(torch.relu(product)))
    gate, value = product.view(len(product), -1, 2).unbind(dim=2)
    return gated_order(to_e4m3(gate * sigmoid(gate) * value))


def log_sums_reference(rows: RoundedRows, weight: RoundedWeight, tokens: int) -> Tensor:
    """Return log(sum_v exp((x W^T)_v)) of normalised rows, over the first `tokens` columns."""
    check_product(rows.rounded, weight)
    product = _product(rows.rounded, weight) * rows.rounded_factors.unsqueeze(1)
    return torch.logsumexp(product[:, :tokens], dim=1)


def check_product(rounded: Tensor, weight: RoundedWeight) -> None:
    sizes_of("rounded", rounded, "rows inner")
    outs, inner = weight.rounded.shape
    require_tensor("rounded", rounded, E4M3, rows=len(rounded), inner=inner)
    require_tensor("weight.rounded", weight.rounded, E4M3, outs=outs, inner=inner)
    require_tensor("weight.scales", weight.scales, torch.float32, outs=outs)


def _product(rounded: Tensor, weight: RoundedWeight) -> Tensor:
    return linear(rounded.float(), weight.rounded.float()) * weight.scales


REFERENCE_ROUNDED = RoundedOps(
    round_rows=round_rows_reference,
    product=product_reference,
    add_product=add_product_reference,
    round_grown=round_grown_reference,
    hidden=hidden_reference,
    log_sums=log_sums_reference,
)
