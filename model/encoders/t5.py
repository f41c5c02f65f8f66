"""The T5 encoder, so that a Hugging Face T5 encoder stack is exactly representable.

Its parameters, all projections [out, in] and without bias (state dict: `encoder.<name>`):

bias                 [relative_buckets, heads]   by bucket of key position - query position
layers.i.self_norm   [d_model]
layers.i.qkv         [3 * heads * d_head, d_model]   q rows, k rows, v rows; each head-major
layers.i.self_out    [d_model, heads * d_head]
layers.i.ffn_norm    [d_model]
layers.i.ffn_in      [d_ff, d_model]; gated: [2 * d_ff, d_model], gate rows first, then linear
layers.i.ffn_out     [d_model, d_ff]
final_norm           [d_model]

The token embedding is the features stage's: `features.embed` [num_tokens, d_model].
"""

import math

import torch
from torch import Tensor, nn

from kernels.row_stable import linear, matmul
from model.inputs import FeatureTensors, UserContext
from model.layers import feed_forward, rms_norm
from model.spec import T5EncoderSpec

__all__ = ["T5Encoder"]


class T5Encoder(nn.Module):
    def __init__(self, spec: T5EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.bias = nn.Parameter(torch.empty(spec.relative_buckets, spec.heads))
        self.layers = nn.ModuleList(T5EncoderLayer(spec) for _ in range(spec.layers))
        self.final_norm = nn.Parameter(torch.ones(spec.d_model))

    def forward(self, features: FeatureTensors) -> UserContext:
        (tokens,) = features.sequences
        bias = self._score_bias(tokens.mask)
        states = tokens.states
        for layer in self.layers:
            states = layer(states, bias)
        states = rms_norm(states, self.final_norm, self.spec.norm_eps)
        return UserContext(states.masked_fill(~tokens.mask[:, :, None], 0.0), tokens.mask)

    def _score_bias(self, mask: Tensor) -> Tensor:
        """Relative position bias, and the lowest number where there is no key: [B, H, T, T].

        Not -inf, with which a request of no token at all would turn into NaN.
        """
        length = mask.shape[1]
        position = torch.arange(length, device=mask.device)
        buckets = _buckets(torch.arange(1 - length, length, device=mask.device), self.spec)
        distance = position[None, :] - position[:, None] + (length - 1)
        bias = self.bias[buckets][distance].permute(2, 0, 1)
        return bias.masked_fill(~mask[:, None, None, :], torch.finfo(bias.dtype).min)


class T5EncoderLayer(nn.Module):
    def __init__(self, spec: T5EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.d_head
        hidden = spec.d_ff if spec.ffn == "relu" else 2 * spec.d_ff
        self.self_norm = nn.Parameter(torch.ones(spec.d_model))
        self.qkv = nn.Parameter(torch.empty(3 * inner, spec.d_model))
        self.self_out = nn.Parameter(torch.empty(spec.d_model, inner))
        self.ffn_norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(hidden, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        normed = rms_norm(states, self.self_norm, self.spec.norm_eps)
        states = states + linear(self._attend(normed, bias), self.self_out)
        normed = rms_norm(states, self.ffn_norm, self.spec.norm_eps)
        return states + feed_forward(normed, self.ffn_in, self.ffn_out, self.spec.ffn)

    def _attend(self, normed: Tensor, bias: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, H * d_head]"""
        batch, length, _ = normed.shape
        qkv = linear(normed, self.qkv)
        heads = qkv.view(batch, length, 3, self.spec.heads, self.spec.d_head)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        scores = matmul(queries, keys.transpose(2, 3))
        if self.spec.scale_scores:
            scores = scores * self.spec.d_head**-0.5
        weights = torch.softmax(scores + bias, dim=-1, dtype=torch.float32).to(values.dtype)
        return matmul(weights, values).transpose(1, 2).reshape(batch, length, -1)


def _buckets(distances: Tensor, spec: T5EncoderSpec) -> Tensor:
    """Half of the buckets for each direction: small distances one each, then growing as log."""
    half = spec.relative_buckets // 2
    exact = half // 2
    away = distances.abs()
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(
        spec.relative_max_distance / exact
    )
    far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(distances > 0, half, 0) + torch.where(away < exact, away, far)
