"""The fast decode loop: the function of `grace.model.definition.beam_search` with less traffic.

* Row factors of RMS norms are not applied: the reader of a product multiplies by them.
* A step's QKV product is its KV cache, written once into rows of a pool that later steps read in
  place. When beams are rearranged, only int32 block ids move.
* Layer 0 is a table of blocks, and for the first steps a memo of prefixes (`prefix_memo`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Beams, Ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.products.fp8_products import LARGEST
from grace.kernels.row_stable import linear
from grace.model.definition.decoder import CrossCache
from grace.model.definition.inputs import UserContext
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.fast_search import StepLogits, search
from grace.model.engine.residual import Residual, input_type


@torch.inference_mode()
def fast_search(
    weights: FastWeights,
    memo: PrefixMemo,
    context: UserContext,
    slot: AdmissionSlot,
    profile: BeamProfile,
    ops: Ops,
) -> Beams:
    batch = len(context)
    bounds = _value_bounds(weights, context)
    blocks = batch * sum(profile.beams)
    shape = (blocks, 3, weights.spec.heads, weights.spec.d_head)
    decoder = _FastDecoder(
        weights=weights,
        memo=memo,
        ops=ops,
        cross=_cross_cache(weights, context),
        bounds=bounds,
        inverse_bounds=None if bounds is None else bounds.reciprocal(),
        pools=tuple(weights.start.new_empty(shape) for _ in weights.qkv),
        factors=tuple(weights.start.new_empty(blocks, dtype=torch.float32) for _ in weights.qkv),
        blocks=torch.arange(blocks, dtype=torch.int32, device=weights.device),
    )
    return search(decoder, batch, slot, profile, ops, weights.device)


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of the beam rows that enter a step."""

    tokens: Tensor  # int32 [rows]: the last tokens
    numbers: Tensor  # int32 [rows]: the prefixes' numbers in the memo; undefined beyond its steps
    first: Tensor  # int32 [rows, L]: blocks in layer 0's table; undefined beyond the step's column
    paged: Tensor  # int32 [rows, L], blocks in the pools of the later layers, likewise


@dataclass(frozen=True, slots=True)
class _FastDecoder:
    """The state of one batch's search."""

    weights: FastWeights
    memo: PrefixMemo
    ops: Ops
    cross: CrossCache
    bounds: Tensor | None  # `_value_bounds`, and one over them
    inverse_bounds: Tensor | None
    # [blocks, 3, H, dh] of each layer after the first, written step by step
    pools: tuple[Tensor, ...]
    # float32 [blocks] of each pool: the row factors that attention applies
    factors: tuple[Tensor, ...]
    blocks: Tensor  # int32 [blocks]: the blocks' numbers

    def first(self, root: Beams) -> _Prefixes:
        # Block 0 of layer 0 is the start.
        table = root.nodes.new_zeros((len(root.nodes), len(self.weights.vocab_sizes)))
        none = root.tokens.flatten()
        return _Prefixes(tokens=none, numbers=none, first=table, paged=table.clone())

    def step(self, step: int, prefixes: _Prefixes, rows: slice) -> StepLogits:
        """Return logits without their row factors, and the factors. The step's blocks are `rows`.

        -> float32 [rows, vocab_sizes[step] + extra[step]], float32 [rows]
        """
        prefixes.paged[:, step] = self.blocks[rows]
        x = self._first_layer(step, prefixes)
        for layer in range(1, len(self.weights.layers)):
            self._later_layer(layer, step, x, prefixes.paged, rows)
        return StepLogits(*x.logits(self.weights.heads[step]))

    def continued(self, step: int, prefixes: _Prefixes, beams: Beams) -> _Prefixes:
        tokens = beams.tokens.flatten()
        first = self.ops.rearrange(prefixes.first, beams.parents, step)
        torch.add(tokens, self.weights.first_block_of(step), out=first[:, step + 1])
        numbers = tokens
        if 0 < step < self.memo.steps - 1:
            before = prefixes.numbers.index_select(0, beams.parents.flatten())
            numbers = torch.add(tokens, before, alpha=self.weights.vocab_sizes[step])
        paged = self.ops.rearrange(prefixes.paged, beams.parents, step)
        return _Prefixes(tokens, numbers, first, paged)

    def _first_layer(self, step: int, prefixes: _Prefixes) -> Residual:
        """Return the residual stream after layer 0."""
        weights, layer = self.weights, self.weights.layers[0]
        if step < self.memo.steps:
            states = self.memo.states[step].index_select(0, prefixes.numbers)
            x = Residual(states, weights, self.ops)
            queries, query_rows, factors = self.memo.queries[step], prefixes.numbers, None
        else:
            # The memo always holds step 0, so there is a token before this one.
            embedded = weights.embed[step - 1].index_select(0, prefixes.tokens)
            x = Residual(embedded, weights, self.ops)
            x.add(self._attended(weights.first_blocks, prefixes.first, step, 0), layer.self_out)
            (queries, factors), query_rows = x.product(layer.cross_q), None
        self._cross_and_feed_forward(0, x, queries, factors, query_rows)
        return x

    def _later_layer(self, index: int, step: int, x: Residual, table: Tensor, rows: slice) -> None:
        weights, layer = self.weights, self.weights.layers[index]
        pool, factors = self.pools[index - 1], self.factors[index - 1]
        factors[rows] = x.into(weights.qkv[index - 1], pool.flatten(1)[rows])
        x.add(self._attended(pool, table, step, index, factors), layer.self_out)
        queries, row_scale = x.product(layer.cross_q)
        self._cross_and_feed_forward(index, x, queries, row_scale, None)

    def _attended(
        self, pool: Tensor, table: Tensor, step: int, index: int, factors: Tensor | None = None
    ) -> Tensor:
        """Return a layer's self-attention, in the type that its next product reads."""
        weights = self.weights
        dtype = input_type(weights.layers[index].self_out)
        prefixes = PagedPrefixes(pool, table, step, weights.bias, weights.scale, factors, dtype)
        return self.ops.self_attention(prefixes)

    def _cross_and_feed_forward(
        self,
        index: int,
        x: Residual,
        queries: Tensor,
        row_scale: Tensor | None,
        query_rows: Tensor | None,
    ) -> None:
        layer, cross = self.weights.layers[index], self.cross
        asked = BeamQueries(
            queries=queries,
            keys=cross.keys[index],
            values=cross.values[index],
            key_mask=cross.mask,
            scale=self.weights.scale,
            row_scale=row_scale,
            query_rows=query_rows,
            dtype=input_type(layer.cross_out),
            request_scale=None if self.inverse_bounds is None else self.inverse_bounds[index],
        )
        bounds = None if self.bounds is None else self.bounds[index]
        x.add(self.ops.cross_attention(asked), layer.cross_out, bounds)
        x.add(x.hidden(layer.ffn_in), layer.ffn_out)


def _cross_cache(weights: FastWeights, context: UserContext) -> CrossCache:
    """Compute all layers' keys and values in one product. They stay where it writes them."""
    batch, tokens, _ = context.states.shape
    states = context.states.to(weights.dtype)
    shape = (batch, tokens, len(weights.layers), 2, weights.spec.heads, weights.spec.d_head)
    written = linear(states.flatten(0, 1), weights.cross_kv).view(shape)
    by_layer = written.permute(2, 3, 0, 4, 1, 5)  # [layers, 2, B, H, T, dh]
    return CrossCache(
        keys=tuple(layer[0] for layer in by_layer),
        values=tuple(layer[1] for layer in by_layer),
        mask=context.mask,
    )


def _value_bounds(weights: FastWeights, context: UserContext) -> Tensor | None:
    """Return a bound of each layer's cross-attention, divided by the largest number of e4m3.

    Each request has its own bound, from its own context, so no request changes another.
    -> float32 [layers, B], or None without a rounded `cross_out`
    """
    if weights.value_norms is None:
        return None
    sizes = torch.linalg.vector_norm(context.states, dim=2, dtype=torch.float32).amax(dim=1)
    least = torch.finfo(torch.float32).tiny
    return (torch.outer(weights.value_norms, sizes) / LARGEST).clamp_min(least)
