"""What an InterFormer block is made of. Projections are [out, in], without bias."""

import torch
from torch import Tensor, nn

from kernels.row_stable import linear, matmul, sigmoid
from model.layers import feed_forward, rms_norm
from model.spec import InterFormerSpec

__all__ = ["Attention", "FeedForward", "Gate", "PersonalFeedForward"]


class Attention(nn.Module):
    """x + W_out softmax(q k / sqrt(d_head)) v, with q of norm(x), and k and v of norm(memory)."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.heads, self.eps = spec.heads, spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.q = nn.Parameter(torch.empty(spec.d_model, spec.d_model))
        self.kv = nn.Parameter(torch.empty(2 * spec.d_model, spec.d_model))
        self.out = nn.Parameter(torch.empty(spec.d_model, spec.d_model))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, Q, d], memory [B, K, d], mask bool [B, K]: some key of each request is True"""
        queries = self._by_head(linear(rms_norm(x, self.norm, self.eps), self.q))
        kv = linear(rms_norm(memory, self.norm, self.eps), self.kv)
        keys, values = (self._by_head(part) for part in kv.chunk(2, dim=-1))
        scores = matmul(queries, keys.transpose(2, 3)) * queries.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        attended = matmul(weights, values).transpose(1, 2).reshape(x.shape)
        return x + linear(attended, self.out)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, H, T, d / H]"""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Gate(nn.Module):
    """x * sigmoid(W norm(x)): what of a summary is passed on."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.weight = nn.Parameter(torch.empty(spec.d_model, spec.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """[B, m, d] -> [B, m, d]"""
        return x * sigmoid(linear(rms_norm(x, self.norm, self.eps), self.weight))


class FeedForward(nn.Module):
    """x + W_out relu(W_in norm(x))"""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))

    def forward(self, x: Tensor) -> Tensor:
        hidden = rms_norm(x, self.norm, self.eps)
        return x + feed_forward(hidden, self.ffn_in, self.ffn_out, "relu")


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

    def forward(self, x: Tensor, user: Tensor) -> Tensor:
        """x [B, T, d], user [B, d]"""
        openings = linear(rms_norm(user, self.personal_norm, self.eps), self.personal)
        hidden = torch.relu(linear(rms_norm(x, self.norm, self.eps), self.ffn_in))
        return x + linear(hidden * (2.0 * sigmoid(openings))[:, None, :], self.ffn_out)
