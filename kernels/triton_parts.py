"""The parts that Triton kernels share: early launches, sizes of tiles, a softmax in powers of two.

Between two kernels of a stream, most of a GPU waits: for the last programs of one, for its writes,
and for the first programs of the other. A kernel that is launched early takes the places that the
one before leaves, and waits there for its results. A chain of small kernels thus takes a tenth less
time, and computes the same. CUDA calls this programmatic dependent launch; it needs compute
capability 9.0.
"""

import torch
import triton
import triton.language as tl

from grace.kernels.devices import HOPPER, limits_of

_MOST_ROWS = 2048

LOG2_E = tl.constexpr(1.4426950408889634)
"""The factor that turns scores into powers of two: exp(x) = exp2(x * LOG2_E)."""


def early_launch(device: torch.device, rows: int = 0) -> dict[str, bool]:
    """Return the last arguments of a kernel that calls `await_kernel_before` with its `early`.

    `rows` are a decoder's. With many of them a GPU is at its limit of power, and on an H200 early
    launches then cost more than they save.
    """
    early = rows <= _MOST_ROWS and limits_of(device).capability >= HOPPER
    return {"early": True, "launch_pdl": True} if early else {"early": False}


@triton.jit
def await_kernel_before(early: tl.constexpr) -> None:
    """Wait until the kernel before has ended and its results can be read.

    The kernel after this one may then take its places. It waits for this one's end in turn, and so
    for every kernel before.
    """
    if early:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def padded(size: int) -> int:
    """Return the size of a matrix tile: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(size)))


@triton.jit
def add_keys(
    scores: tl.tensor, values: tl.tensor, highest: tl.tensor, total: tl.tensor, mixed: tl.tensor
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
