"""An InterFormer's weights in the layout of the fast encoder.

A weight after an RMS norm absorbs its gain, in float32 and before any cast. Weights that multiply
different tokens in one product are stacked, [runs, out, in]. Queries that are parameters do not
depend on a request, so their projections are computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grace.kernels.row_stable import linear
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition import interformer


@dataclass(frozen=True, slots=True)
class FastFeedForward:
    """ffn_in [runs, d_ff, d], with its norm's gain; ffn_out [runs, d, d_ff]"""

    ffn_in: Tensor
    ffn_out: Tensor


@dataclass(frozen=True, slots=True)
class FastSelfAttention:
    """Attention of tokens that are queries and keys: qkv [runs, 3 * d, d], out [runs, d, d]"""

    qkv: Tensor
    out: Tensor


@dataclass(frozen=True, slots=True)
class FastPool:
    """Attention of queries that are parameters."""

    queries: Tensor  # [1, n, d] to which `out` adds
    projected: Tensor  # [1, n, d]: their norm and projection
    kv: Tensor  # [1, 2 * d, d]
    out: Tensor  # [1, d, d]


@dataclass(frozen=True, slots=True)
class FastSequences:
    """The layers of a block's sequences."""

    attention: FastSelfAttention
    feed_forward: FastFeedForward
    personal: Tensor  # [1, sequences * d_ff, d]
    gate_in: Tensor  # [1, d, d]: all sequences share it


@dataclass(frozen=True, slots=True)
class FastBlock:
    """`sequences` is None in a model without any.   gate_out [1, d, d]"""

    summarise: FastPool
    gate_out: Tensor
    sequences: FastSequences | None
    interact: FastSelfAttention
    feed_forward: FastFeedForward


@dataclass(frozen=True, slots=True)
class FastEncoderWeights:
    """summaries [sequences, m, d];   final_norm [d]"""

    summaries: Tensor
    blocks: tuple[FastBlock, ...]
    pool: FastPool
    feed_forward: FastFeedForward
    final_norm: Tensor

    @staticmethod
    @torch.no_grad()
    def of(encoder: interformer.InterFormerEncoder) -> "FastEncoderWeights":
        """Fold the weights of an encoder in float32."""
        shape = -1, encoder.spec.summary_tokens, encoder.spec.d_model
        return FastEncoderWeights(
            summaries=torch.cat([encoder.queries[:0], *encoder.summaries]).view(shape),
            blocks=tuple(map(_block, encoder.blocks)),
            pool=_pool(encoder.queries, encoder.pool),
            feed_forward=_feed_forward([encoder.feed_forward]),
            final_norm=encoder.final_norm.detach(),
        )


def _block(block: nn.Module) -> FastBlock:
    assert isinstance(block, interformer.InterFormerBlock)
    layers = [layer for layer in block.sequences if isinstance(layer, interformer.SequenceLayer)]
    sequences = None
    if layers:
        feed_forwards = [layer.feed_forward for layer in layers]
        personal = torch.cat([each.personal * each.personal_norm for each in feed_forwards])
        sequences = FastSequences(
            attention=_self_attention([layer.attention for layer in layers]),
            feed_forward=_feed_forward(feed_forwards),
            personal=personal.unsqueeze(0),
            gate_in=(block.gate_in.weight * block.gate_in.norm).unsqueeze(0),
        )
    return FastBlock(
        summarise=_pool(block.queries, block.summarise),
        gate_out=(block.gate_out.weight * block.gate_out.norm).unsqueeze(0),
        sequences=sequences,
        interact=_self_attention([block.interact]),
        feed_forward=_feed_forward([block.feed_forward]),
    )


def _pool(queries: Tensor, layer: interformer.Attention) -> FastPool:
    projected = linear(rms_norm(queries, layer.norm, layer.eps), layer.q)
    return FastPool(
        queries=queries.detach().unsqueeze(0),
        projected=projected.unsqueeze(0),
        kv=(layer.kv * layer.norm).unsqueeze(0),
        out=layer.out.detach().unsqueeze(0),
    )


def _self_attention(layers: Sequence[interformer.Attention]) -> FastSelfAttention:
    return FastSelfAttention(
        qkv=torch.stack([torch.cat([each.q, each.kv]) * each.norm for each in layers]),
        out=torch.stack([each.out for each in layers]),
    )


def _feed_forward(layers: Sequence[interformer.FeedForward]) -> FastFeedForward:
    return FastFeedForward(
        ffn_in=torch.stack([each.ffn_in * each.norm for each in layers]),
        ffn_out=torch.stack([each.ffn_out for each in layers]),
    )
