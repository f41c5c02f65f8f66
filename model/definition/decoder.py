"""The decoder, of the T5 family: each step appends one token to every beam.

A layer is self-attention over the beam's own prefix, cross-attention over the user context, and a
feed-forward network. Each of the three reads an RMS norm of the residual stream and adds to the
stream. Every step has its own embeddings and head rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grace.kernels import Ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.row_stable import linear
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition.inputs import UserContext
from grace.model.definition.t5_encoder import hidden_units
from grace.model.definition.t5_spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class CrossCache:
    """The keys and values of cross-attention, computed once per request."""

    keys: tuple[Tensor, ...]  # [B, H, T_ctx, dh] per layer, values likewise
    values: tuple[Tensor, ...]
    mask: Tensor  # bool [B, T_ctx]


class DecoderLayer(nn.Module):
    def __init__(self, spec: DecoderSpec, d_context: int) -> None:
        super().__init__()
        d, inner = spec.d_model, spec.heads * spec.d_head
        hidden = 2 * spec.d_ff if spec.ffn == "gated_gelu" else spec.d_ff
        self.self_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.empty(3 * inner, d))
        self.self_out = nn.Parameter(torch.empty(d, inner))
        self.cross_norm = nn.Parameter(torch.ones(d))
        self.cross_q = nn.Parameter(torch.empty(inner, d))
        self.cross_k = nn.Parameter(torch.empty(inner, d_context))
        self.cross_v = nn.Parameter(torch.empty(inner, d_context))
        self.cross_out = nn.Parameter(torch.empty(d, inner))
        self.ffn_norm = nn.Parameter(torch.ones(d))
        self.ffn_in = nn.Parameter(torch.empty(hidden, d))
        self.ffn_out = nn.Parameter(torch.empty(d, spec.d_ff))


class Decoder(nn.Module):
    """Weights are [out, in], without biases; V is the largest vocabulary, I = heads * d_head.

    start       [d]                 the input of step 0
    embed       [L - 1, V, d]       the token of step t - 1 -> the input of step t
    head        [L, V + extra, d]   the rows from V on only enter the normaliser
    bias        [H, L]              of self-attention, by distance; all layers share it
    final_norm  [d]
    layers.i.   self_norm [d], qkv [3 * I, d], self_out [d, I], cross_norm [d], cross_q [I, d],
                cross_k, cross_v [I, d_context], cross_out [d, I],
                ffn_norm [d], ffn_in [d_ff, d] (gated: [2 * d_ff, d], gate first), ffn_out [d, d_ff]

    A step with a smaller vocabulary ignores the rows beyond it.
    """

    def __init__(self, spec: DecoderSpec, vocab_sizes: tuple[int, ...], d_context: int) -> None:
        super().__init__()
        self.spec = spec
        self.vocab_sizes, self.sid_length = vocab_sizes, len(vocab_sizes)
        self.scale = spec.d_head**-0.5 if spec.scale_scores else 1.0
        length, widest, d = self.sid_length, max(vocab_sizes), spec.d_model
        self.start = nn.Parameter(torch.empty(d))
        self.embed = nn.Parameter(torch.empty(length - 1, widest, d))
        self.extra = spec.extra_head_rows or (0,) * length
        self.head = nn.Parameter(torch.empty(length, widest + max(self.extra), d))
        self.bias = nn.Parameter(torch.empty(spec.heads, length))
        self.final_norm = nn.Parameter(torch.ones(d))
        self.layers = nn.ModuleList(DecoderLayer(spec, d_context) for _ in range(spec.layers))
        self.dropout = nn.Dropout(0.0)

    @property
    def device(self) -> torch.device:
        return self.start.device

    def begin(self, context: UserContext) -> CrossCache:
        """Return every layer's keys and values of context states [B, T_ctx, d_context]."""
        layers = self._layers()
        keys = tuple(self._by_head(linear(context.states, x.cross_k)) for x in layers)
        values = tuple(self._by_head(linear(context.states, x.cross_v)) for x in layers)
        return CrossCache(keys, values, context.mask)

    def new_pools(self, blocks: int) -> tuple[Tensor, ...]:
        """Return a pool [blocks, 3, H, dh] per layer: a step's QKV product is its KV cache."""
        shape = (blocks, 3, self.spec.heads, self.spec.d_head)
        return tuple(self.start.new_empty(shape) for _ in self.layers)

    def step(
        self,
        step: int,
        tokens: Tensor,
        pools: tuple[Tensor, ...],
        table: Tensor,
        cross: CrossCache,
        ops: Ops,
    ) -> Tensor:
        """Return the logits of every beam row over the step's tokens and the extra rows.

        tokens  int32 [rows]      the tokens that the last step appended
        table   int32 [rows, L]   column `step` names the blocks that this step writes
        ->      [rows, vocab_sizes[step] + extra[step]]
        """
        x = self.start.expand(len(tokens), -1) if step == 0 else self.embed[step - 1][tokens]
        blocks = table[:, step]
        for layer, pool, keys, values in zip(
            self._layers(), pools, cross.keys, cross.values, strict=True
        ):
            hidden = rms_norm(x, layer.self_norm, self.spec.norm_eps)
            qkv = linear(hidden, layer.qkv)
            pool[blocks] = qkv.view(len(tokens), 3, self.spec.heads, self.spec.d_head)
            attended = ops.self_attention(PagedPrefixes(pool, table, step, self.bias, self.scale))
            x = x + linear(attended, layer.self_out)
            hidden = rms_norm(x, layer.cross_norm, self.spec.norm_eps)
            asked = BeamQueries(linear(hidden, layer.cross_q), keys, values, cross.mask, self.scale)
            attended = ops.cross_attention(asked)
            x = x + linear(attended, layer.cross_out)
            x = self._feed_forward(layer, x)
        return self._logits(step, x)

    def sequence_logits(self, context: UserContext, sids: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of all steps for one given SID per context row. Training uses this.

        sids int64 [B, L] -> for each step [B, vocab_sizes[step] + extra[step]]
        """
        length = self.sid_length
        inputs = [self.start.expand(len(sids), -1)]
        inputs += [self.embed[t][sids[:, t]] for t in range(length - 1)]
        x = self.dropout(torch.stack(inputs, dim=1))
        cross = self.begin(context)
        places = torch.arange(length, device=sids.device)
        distance = (places[:, None] - places).clamp(min=0)
        future = places > places[:, None]
        causal = self.bias[:, distance].masked_fill(future, -torch.inf)
        # Not -inf: without any key the softmax would be NaN. `has_key` zeroes such rows.
        least = torch.finfo(x.dtype).min
        ignored = torch.zeros_like(cross.mask, dtype=x.dtype).masked_fill(~cross.mask, least)
        has_key = cross.mask.any(dim=-1)[:, None, None]
        for layer, keys, values in zip(self._layers(), cross.keys, cross.values, strict=True):
            hidden = rms_norm(x, layer.self_norm, self.spec.norm_eps)
            qkv = linear(hidden, layer.qkv).chunk(3, dim=-1)
            q, k, v = (self._by_head(part) for part in qkv)
            x = x + self.dropout(linear(self._attend(q, k, v, causal), layer.self_out))
            hidden = rms_norm(x, layer.cross_norm, self.spec.norm_eps)
            q = self._by_head(linear(hidden, layer.cross_q))
            attended = self._attend(q, keys, values, ignored[:, None, None])
            x = x + self.dropout(linear(attended * has_key, layer.cross_out))
            x = self._feed_forward(layer, x)
        return tuple(self._logits(t, x[:, t]) for t in range(length))

    def _layers(self) -> tuple[DecoderLayer, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, DecoderLayer))

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, H * dh] -> [B, H, T, dh]"""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.spec.heads, self.spec.d_head).transpose(1, 2).contiguous()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """[B, H, T, dh] and keys [B, H, S, dh] -> [B, T, H * dh]"""
        scores = self.scale * (q @ k.transpose(-1, -2)) + bias
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)

    def _feed_forward(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        hidden = rms_norm(x, layer.ffn_norm, self.spec.norm_eps)
        units = hidden_units(hidden, layer.ffn_in, self.spec.ffn)
        added: Tensor = self.dropout(linear(units, layer.ffn_out))
        return x + added

    def head_rows(self, step: int) -> Tensor:
        """Return the rows of a step's tokens, then the extra ones.   [V_t + extra[step], d]"""
        vocab, widest, extra = self.vocab_sizes[step], max(self.vocab_sizes), self.extra[step]
        rows = self.head[step, : widest + extra]
        if vocab < widest:
            rows = torch.cat([rows[:vocab], rows[widest:]])
        return rows

    def _logits(self, step: int, x: Tensor) -> Tensor:
        return linear(rms_norm(x, self.final_norm, self.spec.norm_eps), self.head_rows(step))
