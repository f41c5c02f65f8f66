"""The weights of the decoder that precision fp8 rounds, and the scales that keep them within e4m3.

A product with a rounded weight needs rounded rows whose scale is known beforehand. A normalised row
has the norm sqrt(d), so no component of its product exceeds sqrt(d) times the norm of a weight's
row. So the weights of values and hidden units are divided by these norms, and the weights that
multiply them are multiplied: the function stays the same. Layer 0's values are a table with its own
largest numbers. Cross-attention's values have the bound of a request's context (`decode_loop`).

The heads stay in bfloat16: they are a small part of a search and decide its order.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from grace.configs.options import Fp8Product
from grace.kernels import load_rounded_ops
from grace.kernels.products.fp8_products import LARGEST, Order, RoundedWeight, divisors
from grace.model.definition.t5_spec import DecoderSpec
from grace.model.engine.encoder_decoder.decode_weights import FastLayer, FastWeights
from grace.model.engine.precision import PRECISIONS, Precision, products_in_fp8, require_whole_tiles
from grace.model.engine.residual import Weight

_ORDERS: Mapping[str, tuple[Fp8Product, Order]] = {
    "self_out": ("self_out", "plain"),
    "cross_q": ("cross_q", "ordered"),
    "cross_out": ("cross_out", "plain"),
    "ffn_in": ("feed_forward", "ordered"),
    "ffn_out": ("feed_forward", "ordered"),
}
"""The product of each of a layer's weights, and the order of the rows that it multiplies."""


def weights_in(
    folded: FastWeights, precision: Precision, kept: Collection[Fp8Product] = ()
) -> FastWeights:
    """Return float32 weights in a precision. fp8 leaves `kept` in bfloat16."""
    if precision != "fp8":
        return folded.to(PRECISIONS[precision])
    spec = folded.spec
    names = rounded_products(spec, precision, kept)
    of_ffn = {"d_ff": spec.d_ff} if "feed_forward" in names else {}
    require_whole_tiles({"d_model": spec.d_model, "heads * d_head": folded.inner, **of_ffn})
    balanced = _balanced(folded)
    plain = balanced.to(PRECISIONS[precision])
    given = zip(balanced.layers, plain.layers, strict=True)
    return replace(
        plain,
        layers=tuple(_layer(own, other, names) for own, other in given),
        qkv=tuple(_rounded(x, "ordered") for x in balanced.qkv) if "qkv" in names else plain.qkv,
        rounded=load_rounded_ops(folded.device),
        clipped=torch.zeros(1, dtype=torch.int64, device=folded.device),
        value_norms=_value_norms(folded) if "cross_out" in names else None,
    )


def rounded_products(
    spec: DecoderSpec, precision: Precision, kept: Collection[Fp8Product]
) -> tuple[Fp8Product, ...]:
    """Return the decoder's products that compute with e4m3."""
    every: tuple[Fp8Product, ...] = get_args(Fp8Product)
    gated = spec.ffn != "relu"  # the product's epilogue has no gate
    own = tuple(x for x in every if not (gated and x == "feed_forward"))
    return products_in_fp8(own, precision, kept)


def _layer(balanced: FastLayer, plain: FastLayer, names: Collection[str]) -> FastLayer:
    chosen = {name: order for name, (product, order) in _ORDERS.items() if product in names}
    changed = {name: _rounded(getattr(balanced, name), chosen[name]) for name in chosen}
    return replace(plain, **changed)


def _rounded(weight: Weight, reads: Order) -> RoundedWeight:
    return RoundedWeight.of(_plain(weight), reads=reads)


def _balanced(folded: FastWeights) -> FastWeights:
    bound = 2.0 ** math.floor(math.log2(LARGEST / math.sqrt(folded.spec.d_model)))
    by = divisors(folded.first_blocks[:, 2].abs().flatten(1).amax(dim=0))
    blocks = folded.first_blocks.clone()
    blocks[:, 2] /= by.view(blocks.shape[2:])
    qkv, layers = [], []
    for index, layer in enumerate(folded.layers):
        if index:
            weight = _plain(folded.qkv[index - 1]).clone()
            values = weight[2 * folded.inner :]
            by = divisors(torch.linalg.vector_norm(values, dim=1), bound)
            values /= by.unsqueeze(1)
            qkv.append(weight)
        ffn_in, ffn_out = _plain(layer.ffn_in), _plain(layer.ffn_out)
        if folded.spec.ffn == "relu":
            of_hidden = divisors(torch.linalg.vector_norm(ffn_in, dim=1), bound)
            ffn_in, ffn_out = ffn_in / of_hidden.unsqueeze(1), ffn_out * of_hidden
        self_out = _plain(layer.self_out) * by
        layers.append(replace(layer, self_out=self_out, ffn_in=ffn_in, ffn_out=ffn_out))
    return replace(folded, first_blocks=blocks, qkv=tuple(qkv), layers=tuple(layers))


def _value_norms(folded: FastWeights) -> Tensor:
    by_layer = folded.cross_kv.view(len(folded.layers), 2, folded.inner, -1)
    norms: Tensor = torch.linalg.vector_norm(by_layer[:, 1], dim=2)
    return norms.amax(dim=1)


def _plain(weight: Weight) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight
