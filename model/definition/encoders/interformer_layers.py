"""What an InterFormer block is made of. Projections are [out, in], without bias.

Every layer is given the operations to compute with. One that adds to `x` may do so in x's memory:
its caller goes on with what it returns, and never hands it another's tensor.
"""

import torch
from torch import Tensor, nn

from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.model.definition.layers import hidden_units, linear
from grace.model.definition.spec import InterFormerSpec

__all__ = ["Attention", "FeedForward", "Gate", "PersonalFeedForward"]


class Attention(nn.Module):
    """x + W_out softmax(q k / sqrt(d_head)) v, with q of norm(x), and k and v of norm(memory)."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.heads, self.eps = spec.heads, spec.norm_eps
        self.scale = (spec.d_model // spec.heads) ** -0.5
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.q = nn.Parameter(torch.empty(spec.d_model, spec.d_model))
        self.kv = nn.Parameter(torch.empty(2 * spec.d_model, spec.d_model))
        self.out = nn.Parameter(torch.empty(spec.d_model, spec.d_model))

    def forward(
        self, x: Tensor, memory: Tensor, ops: EncoderOps, mask: Tensor | None = None
    ) -> Tensor:
        """x [B, Q, d], memory [B, K, d], mask bool [B, K]: some key of each request is True"""
        normed = ops.rms_norm(x, self.norm, self.eps)
        remembered = normed if memory is x else ops.rms_norm(memory, self.norm, self.eps)
        keys, values = linear(remembered, self.kv).chunk(2, dim=-1)
        attended = ops.attention(linear(normed, self.q), keys, values, self.heads, self.scale, mask)
        return ops.add_product(x, attended, self.out)


class Gate(nn.Module):
    """x * sigmoid(W norm(x)): what of a summary is passed on."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.weight = nn.Parameter(torch.empty(spec.d_model, spec.d_model))

    def forward(self, x: Tensor, ops: EncoderOps) -> Tensor:
        """[B, m, d] -> [B, m, d]"""
        return ops.gate(x, linear(ops.rms_norm(x, self.norm, self.eps), self.weight))


class FeedForward(nn.Module):
    """x + W_out relu(W_in norm(x))"""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))

    def forward(self, x: Tensor, ops: EncoderOps) -> Tensor:
        hidden = hidden_units(ops.rms_norm(x, self.norm, self.eps), self.ffn_in, "relu")
        return ops.add_product(x, hidden, self.ffn_out)


class PersonalFeedForward(nn.Module):
    """x + W_out (relu(W_in norm(x)) * 2 sigmoid(W_personal norm(user))): one user vector for all x.

    The factor is 1 where the user has nothing to say, so the user opens and shuts hidden units.
    """

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))
        self.personal_norm = nn.Parameter(torch.ones(spec.d_model))
        self.personal = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))

    def forward(self, x: Tensor, user: Tensor, ops: EncoderOps) -> Tensor:
        """x [B, T, d], user [B, d]"""
        openings = linear(ops.rms_norm(user, self.personal_norm, self.eps), self.personal)
        hidden = linear(ops.rms_norm(x, self.norm, self.eps), self.ffn_in)
        return ops.add_product(x, ops.open_hidden(hidden, openings), self.ffn_out)
