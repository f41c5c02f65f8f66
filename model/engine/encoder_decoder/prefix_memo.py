"""What depends on a beam's prefix alone, computed once per prefix instead of once per beam.

Up to its cross-attention, layer 0 depends on a beam's prefix and on nothing of the request. The
first steps have few prefixes. So for them, the residual stream after layer 0's self-attention and
the query of its cross-attention are tables with a row per prefix. A prefix's number reads its
tokens as digits: number * vocab_sizes[t] + token after step t.

The tables are computed in float32 and cast once, for as many steps as fit into a number of bytes.
Step 0 has one prefix and is always there.
"""

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from grace.kernels import Ops
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.residual import Residual

_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class PrefixMemo:
    """The tables of steps 0 to steps - 1. A step has P = product of vocab_sizes[:step] prefixes."""

    states: tuple[Tensor, ...]  # [P, d]: after layer 0's self-attention
    queries: tuple[Tensor, ...]  # [P, I] of layer 0's cross-attention, with their row factors
    next_size: int  # bytes of the next step's tables; 0 if there is no next step

    @staticmethod
    @torch.inference_mode()
    def build(weights: FastWeights, dtype: torch.dtype, memo_bytes: int, ops: Ops) -> "PrefixMemo":
        """Build the memo in precision `dtype` from weights in float32."""
        states, queries, left, next_size = [], [], memo_bytes, 0
        counts = accumulate(weights.vocab_sizes[:-1], mul, initial=1)
        for step, prefixes in enumerate(counts):
            size = prefixes * (weights.spec.d_model + weights.inner) * dtype.itemsize
            if step > 0 and size > left:
                next_size = size
                break
            left -= size
            states.append(weights.start.new_empty((prefixes, weights.spec.d_model), dtype=dtype))
            queries.append(weights.start.new_empty((prefixes, weights.inner), dtype=dtype))
            for begin in range(0, prefixes, _ROWS_AT_ONCE):
                rows = slice(begin, min(begin + _ROWS_AT_ONCE, prefixes))
                states[-1][rows], queries[-1][rows] = _rows(weights, step, rows, ops)
        return PrefixMemo(tuple(states), tuple(queries), next_size)

    @property
    def steps(self) -> int:
        return len(self.states)

    @property
    def size(self) -> int:
        """Bytes of all tables."""
        return sum(tensor.nbytes for tensor in (*self.states, *self.queries))


def _rows(weights: FastWeights, step: int, rows: slice, ops: Ops) -> tuple[Tensor, Tensor]:
    """Return states and queries of some of a step's prefixes, in float32."""
    rest = torch.arange(rows.start, rows.stop, device=weights.device)
    x = weights.start.repeat(len(rest), 1)
    # Block 0, in column 0 too, is the start.
    table = rest.new_zeros((len(rest), len(weights.vocab_sizes)), dtype=torch.int32)
    for place in reversed(range(step)):
        tokens = rest % weights.vocab_sizes[place]
        rest = rest // weights.vocab_sizes[place]
        table[:, place + 1] = tokens + weights.first_block_of(place)
        if place + 1 == step:
            x = weights.embed[place][tokens]
    prefixes = PagedPrefixes(weights.first_blocks, table, step, weights.bias, weights.scale)
    residual = Residual(x, weights, ops)
    residual.add(ops.self_attention(prefixes), weights.layers[0].self_out)
    queries, factors = residual.product(weights.layers[0].cross_q)
    return x, queries * factors.unsqueeze(1)
