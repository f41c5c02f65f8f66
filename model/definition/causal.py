"""A causal decoder, of the Qwen and LLaMA kind: it reads a prompt, then appends tokens to beams.

A layer is attention and a gated feed-forward network. Both read an RMS norm of the residual stream
and add to the stream. The prompt of a request is read once: its keys and values serve all beams,
and its last token gives step 0's logits.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from grace.kernels import Ops
from grace.kernels.attention import prompt_attention
from grace.kernels.row_stable import linear, sigmoid
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition.causal_spec import CausalModelSpec, CausalSpec
from grace.model.definition.inputs import Prompts


@dataclass(frozen=True, slots=True)
class PromptCache:
    """The part of a batch's prompts that the steps read."""

    pairs: tuple[Tensor, ...]  # [T, 2, kv_heads, d_head] per layer: keys and values
    offsets: Tensor  # int32 [B + 1]
    last: Tensor  # [B, d]: the residual stream after each prompt's last token


class CausalLayer(nn.Module):
    def __init__(self, spec: CausalSpec) -> None:
        super().__init__()
        d, inner = spec.d_model, spec.qkv_heads * spec.d_head
        self.self_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.empty(inner, d))
        self.qkv_bias = nn.Parameter(torch.empty(inner)) if spec.qkv_bias else None
        self.head_norm = nn.Parameter(torch.ones(2, spec.d_head)) if spec.qk_norm else None
        self.self_out = nn.Parameter(torch.empty(d, spec.heads * spec.d_head))
        self.ffn_norm = nn.Parameter(torch.ones(d))
        self.ffn_in = nn.Parameter(torch.empty(2 * spec.d_ff, d))
        self.ffn_out = nn.Parameter(torch.empty(d, spec.d_ff))


class CausalDecoder(nn.Module):
    """Weights are [out, in]; Q = (heads + 2 * kv_heads) * d_head.

    embed       [num_tokens, d]
    head        [num_tokens, d]     without `tied_head`, which takes `embed`
    final_norm  [d]
    layers.i.   self_norm [d], qkv [Q, d] (queries, keys, values), self_out [d, heads * d_head],
                ffn_norm [d], ffn_in [2 * d_ff, d] (gate first), ffn_out [d, d_ff]
                with `qkv_bias` qkv_bias [Q], with `qk_norm` head_norm [2, d_head] (queries, keys)
    """

    def __init__(self, spec: CausalModelSpec) -> None:
        super().__init__()
        causal = self.spec = spec.causal
        self.vocab_sizes, self.sid_length = spec.vocab_sizes, spec.sid_length
        self.normalizer = spec.normalizer
        self.scale = causal.d_head**-0.5
        self.embed = nn.Parameter(torch.empty(causal.num_tokens, causal.d_model))
        shape = causal.num_tokens, causal.d_model
        self.head = None if causal.tied_head else nn.Parameter(torch.empty(shape))
        self.final_norm = nn.Parameter(torch.ones(causal.d_model))
        self.layers = nn.ModuleList(CausalLayer(causal) for _ in range(causal.layers))
        self._tokens_of_codes = spec.tokens_of_codes
        self.positions = spec.prompt.max_tokens + self.sid_length

    @property
    def device(self) -> torch.device:
        return self.embed.device

    def begin(self, prompts: Prompts) -> PromptCache:
        """Read the prompts. Each is read alone, so its numbers do not depend on its neighbours."""
        turns = self.turns()
        read = [
            self._read(prompts.values[begin:end], turns)
            for begin, end in pairwise(prompts.offsets.tolist())
        ]
        return PromptCache(
            pairs=tuple(map(torch.cat, zip(*(pairs for pairs, _ in read), strict=True))),
            offsets=prompts.offsets.int(),
            last=torch.stack([last for _, last in read]),
        )

    def _read(self, tokens: Tensor, turns: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return keys and values of a prompt in every layer, and its last token's stream."""
        x = self.embed[tokens]
        positions = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
        offsets = positions.new_tensor([0, len(tokens)])
        found = []
        for layer in self.causal_layers():
            queries, pairs = self._heads(layer, x, positions, turns)
            found.append(pairs)
            asked = prompt_attention.PromptTokens(queries, pairs, offsets, len(tokens), self.scale)
            attended = prompt_attention.causal_attention_reference(asked)
            x = self._feed_forward(layer, x + linear(attended, layer.self_out))
        return found, x[-1]

    def new_pools(self, blocks: int) -> tuple[Tensor, ...]:
        """Return a pool [blocks, 2, kv_heads, d_head] per layer, for the beams' own tokens."""
        shape = (blocks, 2, self.spec.kv_heads, self.spec.d_head)
        return tuple(self.embed.new_empty(shape) for _ in self.layers)

    def step(
        self,
        step: int,
        tokens: Tensor,
        pools: tuple[Tensor, ...],
        table: Tensor,
        cache: PromptCache,
        ops: Ops,
    ) -> Tensor:
        """Return the logits of every beam row: the step's codes, then all other tokens if those
        count in the normaliser.

        tokens  int32 [rows]      the codes that the last step appended
        table   int32 [rows, L]   column `step` names the blocks that this step writes
        ->      [rows, vocab_sizes[step] + others]
        """
        if step == 0:
            return self._logits(step, cache.last)
        x = self.embed[self.tokens_at(step - 1)[tokens]]
        lengths = cache.offsets.diff()
        positions = (lengths + step - 1).repeat_interleave(len(tokens) // len(lengths))
        turns = self.turns()
        for layer, pool, pairs in zip(self.causal_layers(), pools, cache.pairs, strict=True):
            queries, pool[table[:, step]] = self._heads(layer, x, positions, turns)
            asked = prompt_attention.PromptQueries(
                queries=queries,
                pairs=pairs,
                offsets=cache.offsets,
                longest=int(lengths.max()),
                pool=pool,
                table=table,
                step=step,
                scale=self.scale,
            )
            x = x + linear(ops.prompt_attention(asked), layer.self_out)
            x = self._feed_forward(layer, x)
        return self._logits(step, x)

    def causal_layers(self) -> tuple[CausalLayer, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, CausalLayer))

    def _heads(
        self, layer: CausalLayer, x: Tensor, positions: Tensor, turns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return queries [rows, heads * d_head], keys and values [rows, 2, kv_heads, d_head]."""
        spec = self.spec
        product = linear(rms_norm(x, layer.self_norm, spec.norm_eps), layer.qkv)
        pairs = x.new_empty((len(x), 2, spec.kv_heads, spec.d_head))
        heads = prompt_attention.Heads(
            product=product,
            heads=spec.heads,
            positions=positions,
            turns=turns,
            eps=spec.norm_eps,
            bias=layer.qkv_bias,
            gains=layer.head_norm,
        )
        return prompt_attention.place_heads_reference(heads, pairs), pairs

    def turns(self) -> Tensor:
        """Return the cosines and sines of the angles by which positions turn a head's points.

        -> float32 [positions, 2, d_head / 2]
        """
        d_head, real = self.spec.d_head, torch.float32
        numbers = torch.arange(0, d_head, 2, dtype=real, device=self.device)
        speeds = 1.0 / self.spec.rope_theta ** (numbers / d_head)
        angles = torch.arange(self.positions, dtype=real, device=self.device)[:, None] * speeds
        return torch.stack([angles.cos(), angles.sin()], dim=1)

    def _feed_forward(self, layer: CausalLayer, x: Tensor) -> Tensor:
        hidden = linear(rms_norm(x, layer.ffn_norm, self.spec.norm_eps), layer.ffn_in)
        gate, value = hidden.chunk(2, dim=-1)
        return x + linear(gate * sigmoid(gate) * value, layer.ffn_out)

    def tokens_at(self, step: int) -> Tensor:
        return torch.tensor(self._tokens_of_codes[step], device=self.device)

    def _logits(self, step: int, x: Tensor) -> Tensor:
        hidden = rms_norm(x, self.final_norm, self.spec.norm_eps)
        head, own = self.embed if self.head is None else self.head, self.tokens_at(step)
        if self.normalizer == "level":
            return linear(hidden, head[own])
        logits = linear(hidden, head)
        others = torch.ones(len(head), dtype=torch.bool, device=head.device)
        others[own] = False
        return torch.cat([logits[:, own], logits[:, others]], dim=1)
