"""The decoder's weights in the layout of the fast loop.

The weight after an RMS norm absorbs its gain, in float32 and before any cast, and the reader of a
product applies the row factors (`grace.kernels.products.row_factors`).

Layer 0 sees only the embedding of the last token, so its q, k and v are a table with one block per
token: block 0 is the start, block 1 + t * V + token the token appended at step t.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.kernels.row_stable import linear
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import map_tensors
from grace.model.definition.t5_spec import DecoderSpec
from grace.model.engine.residual import StreamWeights, Weight


@dataclass(frozen=True, slots=True)
class FastLayer:
    """A layer's weights, as `Decoder` has them; cross_q and ffn_in contain their norms' gains."""

    self_out: Weight
    cross_q: Weight
    cross_out: Weight
    ffn_in: Weight
    ffn_out: Weight


@dataclass(frozen=True, slots=True)
class FastWeights(StreamWeights):
    spec: DecoderSpec
    vocab_sizes: tuple[int, ...]
    scale: float
    start: Tensor  # [d]
    embed: Tensor  # [L - 1, V, d]
    first_blocks: Tensor  # [1 + (L - 1) * V, 3, H, dh]: layer 0's q, k, v, with their row factors
    layers: tuple[FastLayer, ...]  # all layers
    qkv: tuple[Weight, ...]  # [3 * I, d] of each layer after the first
    cross_kv: Tensor  # [layers * 2 * I, d_context] each layer's keys, then its values
    heads: tuple[Tensor, ...]  # [vocab_sizes[t]: + extra[t], d] of each step
    bias: Tensor  # float32 [H, L], in every precision
    # float32 [layers]: the largest norm of a row of cross-attention's weights of values; with a
    # rounded `cross_out`
    value_norms: Tensor | None = None

    @staticmethod
    @torch.no_grad()
    def of(decoder: Decoder) -> "FastWeights":
        """Fold the decoder's weights, in float32. They may share its memory: `to` makes copies."""
        weights = {name: weight.detach().float() for name, weight in decoder.named_parameters()}
        names = [f"layers.{i}" for i in range(decoder.spec.layers)]
        return FastWeights(
            spec=decoder.spec,
            vocab_sizes=decoder.vocab_sizes,
            scale=decoder.scale,
            start=weights["start"],
            embed=weights["embed"],
            first_blocks=_first_blocks(decoder.spec, weights),
            layers=tuple(_layer(weights, name) for name in names),
            qkv=tuple(weights[f"{x}.qkv"] * weights[f"{x}.self_norm"] for x in names[1:]),
            cross_kv=torch.cat([weights[f"{x}.cross_{kind}"] for x in names for kind in "kv"]),
            heads=tuple(
                decoder.head_rows(step).float() * weights["final_norm"]
                for step in range(decoder.sid_length)
            ),
            bias=weights["bias"],
        )

    def to(self, dtype: torch.dtype) -> "FastWeights":
        """Return a copy in another precision."""
        copied = map_tensors(self, lambda weight: weight.to(dtype, copy=True))
        return replace(copied, bias=self.bias.clone())

    @property
    def inner(self) -> int:
        return self.spec.heads * self.spec.d_head

    def first_block_of(self, step: int) -> int:
        """Return layer 0's block of token 0 appended at `step`. The other tokens' blocks follow."""
        return 1 + step * self.embed.shape[1]


def _layer(weights: Mapping[str, Tensor], name: str) -> FastLayer:
    return FastLayer(
        self_out=weights[f"{name}.self_out"],
        cross_q=weights[f"{name}.cross_q"] * weights[f"{name}.cross_norm"],
        cross_out=weights[f"{name}.cross_out"],
        ffn_in=weights[f"{name}.ffn_in"] * weights[f"{name}.ffn_norm"],
        ffn_out=weights[f"{name}.ffn_out"],
    )


def _first_blocks(spec: DecoderSpec, weights: Mapping[str, Tensor]) -> Tensor:
    inputs = torch.cat([weights["start"].unsqueeze(0), weights["embed"].flatten(0, 1)])
    normed = rms_norm(inputs, weights["layers.0.self_norm"], spec.norm_eps)
    return linear(normed, weights["layers.0.qkv"]).view(len(inputs), 3, spec.heads, spec.d_head)
