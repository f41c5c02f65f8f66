"""The weights of a causal decoder in the layout of the fast loop.

As in the T5 family, the weight after an RMS norm absorbs its gain in float32, before any cast, and
precision fp8 divides the input of a rounded weight by its bound.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from grace.configs.options import Fp8Product
from grace.kernels import load_rounded_ops
from grace.kernels.products.fp8_products import ORDERED, Order, RoundedWeight, divisors
from grace.model.definition.causal import CausalDecoder, CausalLayer
from grace.model.definition.causal_spec import CausalSpec
from grace.model.engine.precision import PRECISIONS, Precision, products_in_fp8, require_whole_tiles
from grace.model.engine.residual import StreamWeights, Weight


@dataclass(frozen=True, slots=True)
class FastCausalLayer:
    """A layer's weights, as `CausalDecoder` has them; qkv and ffn_in contain their norms' gains."""

    qkv: Weight
    self_out: Weight
    ffn_in: Weight
    ffn_out: Weight
    bias: Tensor | None
    gains: Tensor | None

    def without_queries(self, queries: int) -> "FastCausalLayer":
        """Return a layer whose `qkv` lacks its first rows, the `queries` columns of queries."""
        qkv, bias = self.qkv, None if self.bias is None else self.bias[queries:]
        if isinstance(qkv, RoundedWeight):
            rest: Weight = RoundedWeight(qkv.rounded[queries:], qkv.scales[queries:])
        else:
            rest = qkv[queries:]
        return replace(self, qkv=rest, bias=bias)


@dataclass(frozen=True, slots=True)
class CausalWeights(StreamWeights):
    spec: CausalSpec
    vocab_sizes: tuple[int, ...]
    scale: float
    embed: Tensor  # [num_tokens, d]
    codes: tuple[Tensor, ...]  # [vocab_sizes[t], d] of each step but the last: embeddings of codes
    heads: tuple[Tensor, ...]  # [vocab_sizes[t], d] of each step
    head: Weight | None  # [num_tokens, d], where all tokens count in the normaliser
    layers: tuple[FastCausalLayer, ...]
    turns: Tensor  # float32 [positions, 2, d_head / 2], in every precision

    @staticmethod
    @torch.no_grad()
    def of(
        decoder: CausalDecoder, precision: Precision, kept: Collection[Fp8Product] = ()
    ) -> "CausalWeights":
        """Fold the weights, one after the other: a second copy in float32 takes gigabytes.

        fp8 leaves `kept` in bfloat16.
        """
        dtype, spec = PRECISIONS[precision], decoder.spec
        names = rounded_causal(precision, kept)
        if names:
            sizes = {
                "d_model": spec.d_model,
                "heads * d_head": spec.heads * spec.d_head,
                "2 * kv_heads * d_head": 2 * spec.kv_heads * spec.d_head,
                "2 * d_ff": 2 * spec.d_ff,
            }
            require_whole_tiles(sizes)
        own_head = decoder.embed if decoder.head is None else decoder.head
        head = own_head.float() * decoder.final_norm.float()
        tokens = [decoder.tokens_at(step) for step in range(decoder.sid_length)]
        of_all = None
        if decoder.normalizer == "all":
            of_all = _rounded_head(head) if names else head.to(dtype)
        return CausalWeights(
            spec=spec,
            vocab_sizes=decoder.vocab_sizes,
            scale=decoder.scale,
            embed=decoder.embed.to(dtype, copy=True),
            codes=tuple(decoder.embed[own].to(dtype) for own in tokens[:-1]),
            heads=tuple(head[own].to(dtype) for own in tokens),
            head=of_all,
            layers=tuple(_folded(spec, x, dtype, names) for x in decoder.causal_layers()),
            turns=decoder.turns(),
            rounded=load_rounded_ops(decoder.device) if names else None,
        )


def rounded_causal(precision: Precision, kept: Collection[Fp8Product]) -> tuple[Fp8Product, ...]:
    """Return the products of a causal decoder that compute with e4m3."""
    return products_in_fp8(("qkv", "self_out", "feed_forward"), precision, kept)


def _folded(
    spec: CausalSpec, layer: CausalLayer, dtype: torch.dtype, names: Collection[str]
) -> FastCausalLayer:
    qkv = layer.qkv.float() * layer.self_norm.float()
    bias = None if layer.qkv_bias is None else layer.qkv_bias.float().clone()
    self_out, ffn_out = layer.self_out.float(), layer.ffn_out.float()
    ffn_in = layer.ffn_in.float() * layer.ffn_norm.float()
    if "self_out" in names:
        self_out = _with_bounded_values(spec, qkv, bias, self_out)
    if "feed_forward" in names:
        ffn_in, ffn_out = _with_bounded_hidden(spec, ffn_in, ffn_out)

    def kept(name: str, weight: Tensor, reads: Order) -> Weight:
        return RoundedWeight.of(weight, reads=reads) if name in names else weight.to(dtype)

    return FastCausalLayer(
        qkv=kept("qkv", qkv, "ordered"),
        self_out=kept("self_out", self_out, "plain"),
        ffn_in=kept("feed_forward", ffn_in, "ordered"),
        ffn_out=kept("feed_forward", ffn_out, "gated"),
        bias=bias,
        gains=None if layer.head_norm is None else layer.head_norm.float(),
    )


def _with_bounded_values(
    spec: CausalSpec, qkv: Tensor, bias: Tensor | None, self_out: Tensor
) -> Tensor:
    """Divide the values by their bounds in place; return `self_out` multiplied by these.

    A normalised row has the norm sqrt(d), so no value exceeds sqrt(d) times its row's norm.
    """
    first = (spec.heads + spec.kv_heads) * spec.d_head
    bounds = torch.linalg.vector_norm(qkv[first:], dim=1) * math.sqrt(spec.d_model)
    if bias is not None:
        bounds += bias[first:].abs()
    by = divisors(bounds)
    qkv[first:] /= by.unsqueeze(1)
    if bias is not None:
        bias[first:] /= by
    group = spec.heads // spec.kv_heads
    return self_out * by.view(spec.kv_heads, spec.d_head).repeat_interleave(group, dim=0).flatten()


def _with_bounded_hidden(
    spec: CausalSpec, ffn_in: Tensor, ffn_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Divide hidden units by the bounds of gate and value, and interleave the rows of both."""
    gate, value = ffn_in.chunk(2)
    norms = [torch.linalg.vector_norm(part, dim=1) for part in (gate, value)]
    by = divisors(norms[0] * norms[1] * spec.d_model)
    return torch.stack([gate, value / by.unsqueeze(1)], dim=1).flatten(0, 1), ffn_out * by


def _rounded_head(head: Tensor) -> RoundedWeight:
    """Return the head rounded, with rows of zeros after its own: a product has whole tiles."""
    missing = -len(head) % ORDERED
    return RoundedWeight.of(functional.pad(head, (0, 0, 0, missing)), reads="ordered")
