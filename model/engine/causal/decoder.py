"""The fast causal decoder: it reads packed prompts, and beams share their keys and values.

* The prompts of a batch follow each other without padding. Every layer writes their keys and values
  once; attention finds a request's part by offsets, which a graph reads from memory.
* The last layer computes keys and values of all tokens, and the rest for each prompt's last one.
* A step's keys and values go to rows of a pool. When beams move, only int32 block ids do.
* The residual stream and its products are those of the T5 family (`residual.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels import Beams, Ops
from grace.kernels.attention.prompt_attention import Heads, PromptQueries, PromptTokens
from grace.model.engine.causal.weights import CausalWeights
from grace.model.engine.fast_search import StepLogits
from grace.model.engine.residual import Residual, input_type


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """The prompts of one batch, with keys and values, in memory that every batch reuses."""

    tokens: Tensor  # int32 [T]: token ids; after the last prompt, those of an earlier batch
    offsets: Tensor  # int32 [B + 1]; requests that a batch does not have are empty
    pairs: tuple[Tensor, ...]  # [T, 2, kv_heads, d_head] per layer: keys and values
    last: Tensor  # [B, d]: the residual stream after each prompt's last token
    longest: int  # tokens; no prompt has more

    @staticmethod
    def of(weights: CausalWeights, requests: int, longest: int) -> "PromptRoom":
        """Return room for that many prompts, each of the longest length."""
        spec, capacity = weights.spec, requests * longest
        shape = (capacity, 2, spec.kv_heads, spec.d_head)
        ids = torch.zeros(capacity + requests + 1, dtype=torch.int32, device=weights.device)
        return PromptRoom(
            tokens=ids[:capacity],
            offsets=ids[capacity:],
            pairs=tuple(weights.embed.new_zeros(shape) for _ in weights.layers),
            last=weights.embed.new_zeros((requests, spec.d_model)),
            longest=longest,
        )

    @torch.inference_mode()
    def place(self, tokens: Tensor, offsets: Tensor, total: int) -> None:
        """Copy a batch's `total` tokens and its offsets here, without waiting for the device."""
        self.tokens[:total].copy_(tokens[:total], non_blocking=True)
        self.offsets.fill_(total)
        self.offsets[: len(offsets)].copy_(offsets, non_blocking=True)


@torch.inference_mode()
def read_prompts(weights: CausalWeights, room: PromptRoom, rows: int, ops: Ops) -> None:
    """Read the prompts of the room, which have at most `rows` tokens together."""
    places = torch.arange(rows, dtype=torch.int32, device=weights.device)
    requests = torch.searchsorted(room.offsets, places, right=True) - 1
    positions = (places - room.offsets[requests]).clamp_(0, len(weights.turns) - 1)
    layers = _Layers(weights, room, len(room.last), ops)
    x = Residual(weights.embed[room.tokens[:rows].long()], weights, ops, grows=True)
    last = len(weights.layers) - 1
    for index in range(last):
        pairs = room.pairs[index][:rows]
        queries = layers.heads(index, x, positions, pairs)
        dtype = input_type(weights.layers[index].self_out)
        own = PromptTokens(queries, pairs, room.offsets, room.longest, weights.scale, dtype)
        layers.finish(index, x, ops.causal_attention(own))
    layers.heads(last, x, positions, room.pairs[last][:rows], queries=False)
    ends = (room.offsets[1:] - 1).clamp(min=0).long()
    x = Residual(x.rows[ends], weights, ops, grows=True)
    pool = room.pairs[last].new_empty((len(ends), *room.pairs[last].shape[1:]))
    queries = layers.heads(last, x, positions[ends], pool)
    none = torch.zeros((len(ends), 1), dtype=torch.int32, device=weights.device)
    layers.finish(last, x, layers.attended(last, queries, pool, none, 0))
    room.last.copy_(x.rows)


@dataclass(frozen=True, slots=True)
class _BeamPrefixes:
    """The prefixes of the beam rows that enter a step."""

    codes: Tensor  # int32 [rows]: the last codes
    table: Tensor  # int32 [rows, L]: blocks in the pools, from column 1 on


class CausalSteps:
    """The state of one batch's search over the prompts of a room."""

    def __init__(
        self, weights: CausalWeights, room: PromptRoom, batch: int, blocks: int, ops: Ops
    ) -> None:
        self._weights, self._ops = weights, ops
        self._layers = _Layers(weights, room, batch, ops)
        self._last = room.last[:batch]
        self._lengths = room.offsets[: batch + 1].diff()
        shape = (blocks, 2, weights.spec.kv_heads, weights.spec.d_head)
        self._pools = [weights.embed.new_empty(shape) for _ in weights.layers]
        self._blocks = torch.arange(blocks, dtype=torch.int32, device=weights.device)

    def first(self, root: Beams) -> _BeamPrefixes:
        table = root.nodes.new_zeros((len(root.nodes), len(self._weights.vocab_sizes)))
        return _BeamPrefixes(root.tokens.flatten(), table)

    def step(self, step: int, prefixes: _BeamPrefixes, rows: slice) -> StepLogits:
        weights, layers = self._weights, self._layers
        if step == 0:
            return self._logits(step, Residual(self._last, weights, self._ops))
        embedded = weights.codes[step - 1].index_select(0, prefixes.codes)
        x = Residual(embedded, weights, self._ops, grows=True)
        prefixes.table[:, step] = self._blocks[rows]
        beams = len(x.rows) // len(self._lengths)
        positions = (self._lengths + (step - 1)).repeat_interleave(beams)
        for index, pool in enumerate(self._pools):
            queries = layers.heads(index, x, positions, pool[rows])
            layers.finish(index, x, layers.attended(index, queries, pool, prefixes.table, step))
        return self._logits(step, x)

    def continued(self, step: int, prefixes: _BeamPrefixes, beams: Beams) -> _BeamPrefixes:
        table = self._ops.rearrange(prefixes.table, beams.parents, step)
        return _BeamPrefixes(beams.tokens.flatten(), table)

    def _logits(self, step: int, x: Residual) -> StepLogits:
        logits, head = x.logits(self._weights.heads[step]), self._weights.head
        sums = None if head is None else x.log_sums(head, len(self._weights.embed))
        return StepLogits(*logits, sums)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The parts of a layer, for rows of prompts and of beams."""

    weights: CausalWeights
    room: PromptRoom
    requests: int  # whose beams attend to prompts
    ops: Ops

    def heads(
        self, index: int, x: Residual, positions: Tensor, pairs: Tensor, *, queries: bool = True
    ) -> Tensor:
        """Return queries if they are wanted, and write keys and values to `pairs`."""
        layer, spec = self.weights.layers[index], self.weights.spec
        if not queries:
            layer = layer.without_queries(spec.heads * spec.d_head)
        product, row_scale = x.product(layer.qkv)
        placed = Heads(
            product=product,
            heads=spec.heads if queries else 0,
            positions=positions,
            turns=self.weights.turns,
            eps=spec.norm_eps,
            bias=layer.bias,
            gains=layer.gains,
            row_scale=row_scale,
        )
        return self.ops.place_heads(placed, pairs)

    def attended(
        self, index: int, queries: Tensor, pool: Tensor, table: Tensor, step: int
    ) -> Tensor:
        """Return attention over prompts and over own tokens, in the type of the next product."""
        asked = PromptQueries(
            queries=queries,
            pairs=self.room.pairs[index],
            offsets=self.room.offsets[: self.requests + 1],
            longest=self.room.longest,
            scale=self.weights.scale,
            dtype=input_type(self.weights.layers[index].self_out),
            pool=pool,
            table=table,
            step=step,
        )
        return self.ops.prompt_attention(asked)

    def finish(self, index: int, x: Residual, attended: Tensor) -> None:
        layer = self.weights.layers[index]
        x.add(attended, layer.self_out)
        x.add(x.hidden(layer.ffn_in), layer.ffn_out)
