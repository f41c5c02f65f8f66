"""A decoder's weights as the rungs read them: as they are, in the type that is computed in."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from grace.model.definition.decoder import Decoder
from grace.model.definition.spec import DecoderSpec

__all__ = ["LayerWeights", "RungWeights"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's, named and shaped as in model/definition/decoder.py."""

    self_norm: Tensor
    qkv: Tensor
    self_out: Tensor
    cross_norm: Tensor
    cross_q: Tensor
    cross_k: Tensor
    cross_v: Tensor
    cross_out: Tensor
    ffn_norm: Tensor
    ffn_in: Tensor
    ffn_out: Tensor


@dataclass(frozen=True, slots=True)
class RungWeights:
    """
    heads  [vocab_sizes[t] + extra rows, d] per step
    bias   [H, L], or None where it is zero: FlashAttention takes none
    """

    spec: DecoderSpec
    vocab_sizes: tuple[int, ...]
    scale: float
    start: Tensor
    embed: Tensor
    heads: tuple[Tensor, ...]
    bias: Tensor | None
    final_norm: Tensor
    layers: tuple[LayerWeights, ...]

    @staticmethod
    def of(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> "RungWeights":
        state = {
            name: weight.detach().to(device, dtype)
            for name, weight in decoder.state_dict(keep_vars=True).items()
        }
        names = [field.name for field in fields(LayerWeights)]
        return RungWeights(
            spec=decoder.spec,
            vocab_sizes=decoder.vocab_sizes,
            scale=decoder.scale,
            start=state["start"],
            embed=state["embed"],
            heads=tuple(_head(decoder, state["head"], t) for t in range(decoder.sid_length)),
            bias=state["bias"] if bool(decoder.bias.any()) else None,
            final_norm=state["final_norm"],
            layers=tuple(
                LayerWeights(**{name: state[f"layers.{i}.{name}"] for name in names})
                for i in range(decoder.spec.layers)
            ),
        )


def _head(decoder: Decoder, head: Tensor, step: int) -> Tensor:
    """The step's tokens, then the rows that only enter its normaliser."""
    widest, extra = max(decoder.vocab_sizes), decoder.extra[step]
    rows = head[step]
    return torch.cat([rows[: decoder.vocab_sizes[step]], rows[widest : widest + extra]])
