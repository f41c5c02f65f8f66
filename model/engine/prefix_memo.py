"""What a step knows of a prefix alone, computed once for every prefix instead of for every beam.

Up to its cross-attention, layer 0 depends on the tokens of a beam's prefix and on nothing of the
request. So for the first steps, whose prefixes are few, the residual stream after layer 0's
self-attention and the query of its cross-attention are tables with a row per prefix. A prefix's
number is that of its tokens as digits: number * vocab_sizes[t] + token after step t.

Made in float32 and cast once; as many steps as fit into a number of bytes. Step 0 has one prefix,
and is always there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels import Ops
from grace.model.engine.fast_products import PLAIN_PRODUCTS, product
from grace.model.engine.fast_weights import FastWeights

__all__ = ["PrefixMemo"]

_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class PrefixMemo:
    """Of steps 0 .. steps - 1, with P = the product of vocab_sizes[:step] prefixes each.

    states   [P, d]   after layer 0's self-attention
    queries  [P, I]   of layer 0's cross-attention, their row factors applied
    """

    states: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]

    @staticmethod
    @torch.inference_mode()
    def build(weights: FastWeights, dtype: torch.dtype, memo_bytes: int, ops: Ops) -> "PrefixMemo":
        """`weights` are those in float32; the memo is in the precision that generation runs in."""
        states, queries, left = [], [], memo_bytes
        for step, prefixes in enumerate(_prefix_counts(weights.vocab_sizes)):
            size = prefixes * (weights.spec.d_model + weights.inner) * dtype.itemsize
            if step > 0 and size > left:
                break
            left -= size
            of_step = weights.start.new_empty((prefixes, weights.spec.d_model), dtype=dtype)
            asked = weights.start.new_empty((prefixes, weights.inner), dtype=dtype)
            for begin in range(0, prefixes, _ROWS_AT_ONCE):
                end = min(begin + _ROWS_AT_ONCE, prefixes)
                of_step[begin:end], asked[begin:end] = _rows(weights, step, begin, end, ops)
            states.append(of_step)
            queries.append(asked)
        return PrefixMemo(tuple(states), tuple(queries))

    @property
    def steps(self) -> int:
        return len(self.states)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(tensor.nbytes for tensor in (*self.states, *self.queries))


def _prefix_counts(vocab_sizes: tuple[int, ...]) -> list[int]:
    """How many prefixes enter each step."""
    counts = [1]
    for size in vocab_sizes[:-1]:
        counts.append(counts[-1] * size)
    return counts


def _rows(weights: FastWeights, step: int, begin: int, end: int, ops: Ops) -> tuple[Tensor, Tensor]:
    """States and queries of the prefixes begin .. end of a step, in float32."""
    numbers = torch.arange(begin, end, device=weights.device)
    table = torch.zeros(
        (end - begin, weights.sid_length), dtype=torch.int32, device=weights.device
    )  # column 0 is the start
    x = weights.start.repeat(end - begin, 1)
    rest = numbers
    for place in reversed(range(step)):
        tokens = rest % weights.vocab_sizes[place]
        rest = rest // weights.vocab_sizes[place]
        table[:, place + 1] = tokens + weights.first_block_of(place)
        if place + 1 == step:
            x = weights.embed[place][tokens]
    attended = ops.self_attention(weights.first_blocks, table, step, weights.bias, weights.scale)
    layer = weights.layers[0]
    PLAIN_PRODUCTS.add(x, attended, layer.self_out)
    factors = ops.row_factors(x, weights.spec.norm_eps)
    return x, product(x, layer.cross_q) * factors.unsqueeze(1)
