"""The T5 encoder: it can represent the encoder stack of a Hugging Face T5 exactly.

It reads a history of SIDs as tokens, as TIGER does. The features stage owns the embedding of the
tokens: `features.embed` [num_tokens, d_model].
"""

import math

import torch
from torch import Tensor, nn

from grace.kernels.encoder.encoder_attention import TokenQueries
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.kernels.row_stable import gelu, linear
from grace.model.definition.inputs import FeatureTensors, UserContext
from grace.model.definition.t5_spec import Ffn, T5EncoderSpec


def hidden_units(x: Tensor, weight_in: Tensor, ffn: Ffn) -> Tensor:
    """The hidden units of the T5 family's feed-forward network: relu(x W_in), or for
    `gated_gelu` gelu(x W_gate) * x W_linear, with gelu in its tanh form."""
    hidden = linear(x, weight_in)
    if ffn == "relu":
        return torch.relu(hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return gelu(gate) * value


def distance_buckets(away: Tensor, buckets: int, furthest: int) -> Tensor:
    """Return the bucket of each distance, which is at least 0.

    Each small distance has its own bucket. Larger ones share buckets whose widths grow
    logarithmically up to `furthest`.
    """
    exact = buckets // 2
    # The float32 operations of transformers: at the borders of buckets, their rounding decides.
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return torch.where(away < exact, away, far)


class T5Encoder(nn.Module):
    """Its projections are [out, in], without bias; I = heads * d_head.

    bias        [relative_buckets, heads]   by bucket of key position - query position
    final_norm  [d_model]
    layers.i.   self_norm [d_model], qkv [3 * I, d_model] (q, k, v; each head-major),
                self_out [d_model, I], ffn_norm [d_model],
                ffn_in [d_ff, d_model] (gated: [2 * d_ff, d_model], gate first),
                ffn_out [d_model, d_ff]
    """

    def __init__(self, spec: T5EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.bias = nn.Parameter(torch.empty(spec.relative_buckets, spec.heads))
        self.layers = nn.ModuleList(T5EncoderLayer(spec) for _ in range(spec.layers))
        self.final_norm = nn.Parameter(torch.ones(spec.d_model))

    def forward(self, features: FeatureTensors, ops: EncoderOps = PLAIN_ENCODER) -> UserContext:
        (tokens,) = features.sequences
        bias = self._bias_by_distance(tokens.mask.shape[1])
        states = tokens.states
        for layer in self.layers:
            states = layer(states, tokens.mask, bias, ops)
        states = ops.rms_norm(states, self.final_norm, self.spec.norm_eps)
        return UserContext(states.masked_fill(~tokens.mask[:, :, None], 0.0), tokens.mask)

    def _bias_by_distance(self, length: int) -> Tensor:
        """Return [H, 2 * length - 1]: the bias of each distance, key position - query position."""
        distances = torch.arange(1 - length, length, device=self.bias.device)
        half = self.spec.relative_buckets // 2  # for each direction
        away = distance_buckets(distances.abs(), half, self.spec.relative_max_distance)
        buckets = torch.where(distances > 0, half, 0) + away
        return self.bias[buckets].t().contiguous()


class T5EncoderLayer(nn.Module):
    def __init__(self, spec: T5EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.d_head
        hidden = spec.d_ff if spec.ffn == "relu" else 2 * spec.d_ff
        self.scale = spec.d_head**-0.5 if spec.scale_scores else 1.0
        self.self_norm = nn.Parameter(torch.ones(spec.d_model))
        self.qkv = nn.Parameter(torch.empty(3 * inner, spec.d_model))
        self.self_out = nn.Parameter(torch.empty(spec.d_model, inner))
        self.ffn_norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(hidden, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))
        self.dropout = nn.Dropout(0.0)

    def forward(self, states: Tensor, mask: Tensor, bias: Tensor, ops: EncoderOps) -> Tensor:
        """states [B, T, d], mask bool [B, T], bias [H, 2 * T - 1]"""
        normed = ops.rms_norm(states, self.self_norm, self.spec.norm_eps)
        queries, keys, values = linear(normed, self.qkv).chunk(3, dim=-1)
        asked = TokenQueries(queries, keys, values, self.spec.heads, self.scale, mask, bias)
        states = states + self.dropout(linear(ops.attention(asked), self.self_out))
        normed = ops.rms_norm(states, self.ffn_norm, self.spec.norm_eps)
        hidden = hidden_units(normed, self.ffn_in, self.spec.ffn)
        added: Tensor = self.dropout(linear(hidden, self.ffn_out))
        return states + added
