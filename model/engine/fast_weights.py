"""The decoder's weights as generation wants them: no norms, no look-up that a table can answer.

An RMS norm is a gain per column and a factor per row, and a linear map commutes with both. So each
gain is folded into the weight behind the norm, in float32 and before any cast; the row factor is
carried beside the rows and applied by whoever reads the product.

Layer 0 sees only the embedding of the token appended last, so its q, k and v are a table with a
block per token: block 0 is the start, block 1 + t * V + token the one appended at step t. Weights
stay [out, in] with rows of `in` contiguous, which x W^T reads as it is stored, and the head rows of
a step are side by side.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grace.model.definition.decoder import Decoder
from grace.model.definition.layers import linear, rms_norm
from grace.model.definition.spec import DecoderSpec
from grace.model.engine.fast_products import PLAIN_PRODUCTS, Products, products_for

__all__ = ["PRECISIONS", "FastLayer", "FastWeights", "Precision"]

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]

PRECISIONS: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class FastLayer:
    """Of every layer, with I = heads * d_head; the gains of the norms are in cross_q and ffn_in.

    self_out [d, I], cross_q [I, d], cross_out [d, I],
    ffn_in [d_ff, d] (gated: [2 * d_ff, d], gate first), ffn_out [d, d_ff]
    """

    self_out: Tensor
    cross_q: Tensor
    cross_out: Tensor
    ffn_in: Tensor
    ffn_out: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "FastLayer":
        return FastLayer(
            *(getattr(self, f.name).to(device, dtype, copy=True) for f in fields(self))
        )


@dataclass(frozen=True, slots=True)
class FastWeights:
    """
    start        [d]
    embed        [L - 1, V, d]
    first_blocks [1 + (L - 1) * V, 3, H, dh]   layer 0's q, k, v, its row factors applied
    layers       every layer
    qkv          [3 * I, d] of each layer after the first
    cross_kv     [layers * 2 * I, d_context]   each layer's keys, then its values
    heads        [vocab_sizes[t] + extra[t], d] of each step
    bias         float32 [H, L], in every precision
    products     how rows are multiplied by these
    """

    spec: DecoderSpec
    vocab_sizes: tuple[int, ...]
    scale: float
    start: Tensor
    embed: Tensor
    first_blocks: Tensor
    layers: tuple[FastLayer, ...]
    qkv: tuple[Tensor, ...]
    cross_kv: Tensor
    heads: tuple[Tensor, ...]
    bias: Tensor
    products: Products

    @staticmethod
    @torch.no_grad()
    def of(decoder: Decoder) -> "FastWeights":
        """In float32, on the decoder's device. Some may be the decoder's own: `to` makes copies."""
        weights = {name: weight.detach().float() for name, weight in decoder.named_parameters()}
        layers = [_of_layer(weights, f"layers.{i}.") for i in range(decoder.spec.layers)]
        qkv = [
            _folded(weights[f"layers.{i}.qkv"], weights[f"layers.{i}.self_norm"])
            for i in range(1, decoder.spec.layers)
        ]
        cross_kv = [
            weights[f"layers.{i}.cross_{kind}"] for i in range(decoder.spec.layers) for kind in "kv"
        ]
        return FastWeights(
            spec=decoder.spec,
            vocab_sizes=decoder.vocab_sizes,
            scale=decoder.scale,
            start=weights["start"],
            embed=weights["embed"],
            first_blocks=_first_blocks(decoder.spec, weights),
            layers=tuple(layers),
            qkv=tuple(qkv),
            cross_kv=torch.cat(cross_kv),
            heads=tuple(_head(decoder, weights, step) for step in range(decoder.sid_length)),
            bias=weights["bias"],
            products=PLAIN_PRODUCTS,
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> "FastWeights":
        """A copy, in whatever precision."""

        def copied(weight: Tensor) -> Tensor:
            return weight.to(device, dtype, copy=True)

        return FastWeights(
            spec=self.spec,
            vocab_sizes=self.vocab_sizes,
            scale=self.scale,
            start=copied(self.start),
            embed=copied(self.embed),
            first_blocks=copied(self.first_blocks),
            layers=tuple(layer.to(device, dtype) for layer in self.layers),
            qkv=tuple(map(copied, self.qkv)),
            cross_kv=copied(self.cross_kv),
            heads=tuple(map(copied, self.heads)),
            bias=self.bias.to(device, copy=True),
            products=products_for(device, dtype),
        )

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are in the precision of this."""
        for name in ("start", "embed", "first_blocks", "cross_kv"):
            yield name, getattr(self, name)
        for name in ("qkv", "heads"):
            yield from ((f"{name}[{i}]", each) for i, each in enumerate(getattr(self, name)))
        for i, layer in enumerate(self.layers):
            yield from ((f"layers[{i}].{f.name}", getattr(layer, f.name)) for f in fields(layer))

    @property
    def sid_length(self) -> int:
        return len(self.vocab_sizes)

    @property
    def inner(self) -> int:
        return self.spec.heads * self.spec.d_head

    @property
    def device(self) -> torch.device:
        return self.start.device

    @property
    def dtype(self) -> torch.dtype:
        return self.start.dtype

    def first_block_of(self, step: int) -> int:
        """Layer 0's block of token 0 appended at `step`; the other tokens' follow it."""
        return 1 + step * self.embed.shape[1]


def _of_layer(weights: Mapping[str, Tensor], layer: str) -> FastLayer:
    return FastLayer(
        self_out=weights[f"{layer}self_out"],
        cross_q=_folded(weights[f"{layer}cross_q"], weights[f"{layer}cross_norm"]),
        cross_out=weights[f"{layer}cross_out"],
        ffn_in=_folded(weights[f"{layer}ffn_in"], weights[f"{layer}ffn_norm"]),
        ffn_out=weights[f"{layer}ffn_out"],
    )


def _first_blocks(spec: DecoderSpec, weights: Mapping[str, Tensor]) -> Tensor:
    inputs = torch.cat([weights["start"].unsqueeze(0), weights["embed"].flatten(0, 1)])
    normed = rms_norm(inputs, weights["layers.0.self_norm"], spec.norm_eps)
    qkv = linear(normed, weights["layers.0.qkv"])
    return qkv.view(len(inputs), 3, spec.heads, spec.d_head)


def _head(decoder: Decoder, weights: Mapping[str, Tensor], step: int) -> Tensor:
    vocab, widest, extra = decoder.vocab_sizes[step], max(decoder.vocab_sizes), decoder.extra[step]
    rows = weights["head"][step]
    rows = torch.cat([rows[:vocab], rows[widest : widest + extra]])
    return _folded(rows, weights["final_norm"])


def _folded(weight: Tensor, gain: Tensor) -> Tensor:
    return weight * gain
