"""The parts that attention kernels share: sizes of tiles, and a softmax in powers of two."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""The factor that turns scores into powers of two: exp(x) = exp2(x * LOG2_E)."""


def padded(size: int) -> int:
    """Return the size of a matrix tile: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(size)))


@triton.jit
def add_keys(
    scores: tl.tensor,
    values: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the running maximum, sum of weights and weighted sum of values after a block of keys.

    scores [queries, keys] in powers of two, -inf where a key does not count; values [keys, d];
    highest and total [queries]; mixed [queries, d]
    """
    reached = tl.maximum(highest, tl.max(scores, axis=1))
    base = tl.where(reached == float("-inf"), 0.0, reached)
    weights = tl.exp2(scores - base[:, None])
    shrunk = tl.exp2(highest - base)
    total = total * shrunk + tl.sum(weights, axis=1)
    found = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    mixed = mixed * shrunk[:, None] + found
    return reached, total, mixed
