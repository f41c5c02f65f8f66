"""The engine's matrix products in ranges that the profiler reports, named by their shapes.

Some are launched through ctypes, where a profiler sees a kernel but no operation.
"""

from dataclasses import replace

from torch import Tensor
from torch.profiler import record_function

from grace.bench.gpu.instruments.floors import Counts
from grace.kernels.products.fp8_products import Addition, RoundedOps, RoundedRows, RoundedWeight
from grace.model.engine.decode_weights import Products


class NamedProducts:
    """Plain products, each in a range; `counts` gets the least work of each, by its name."""

    def __init__(self, products: Products, counts: Counts) -> None:
        self._products, self._counts = products, counts

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        with _named(self._counts, x, weight, "", out.element_size()):
            self._products.into(x, weight, out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        with _named(self._counts, x, weight, " added", 2 * residual.element_size()):
            self._products.add(residual, x, weight)


def named_rounded(ops: RoundedOps, counts: Counts) -> RoundedOps:
    """Do the same for products with rounded weights."""

    def product(x: Tensor, weight: RoundedWeight, out: Tensor) -> None:
        with _named(counts, x, weight, " fp8", 2):
            ops.product(x, weight, out)

    def add_product(by: Addition) -> RoundedRows:
        read_written_and_rounded = 2 + 2 + 1
        with _named(counts, by.rounded, by.weight, " fp8 added", read_written_and_rounded):
            return ops.add_product(by)

    def hidden(rows: RoundedRows, weight: RoundedWeight) -> Tensor:
        with _named(counts, rows.rounded, weight, " fp8 rounded", 1):
            return ops.hidden(rows, weight)

    return replace(ops, product=product, add_product=add_product, hidden=hidden)


def _named(
    counts: Counts, x: Tensor, weight: Tensor | RoundedWeight, suffix: str, result_bytes: int
) -> record_function:
    """Count a product, an element of whose result costs some bytes, and return its range."""
    (rows, inner), columns = x.shape, len(weight)
    name = f"{rows} x {inner} x {columns}{suffix}"
    moved = (rows * inner + inner * columns) * x.element_size() + rows * columns * result_bytes
    counts.add(name, moved, 2 * rows * inner * columns)
    return record_function(name)
