"""The table of an encoder's operations, and its plain torch bodies for any device and for training.

A faster table may overwrite what `add_product` adds to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grace.kernels.encoder.encoder_attention import encoder_attention_reference
from grace.kernels.encoder.norm_and_gates import (
    gate_reference,
    open_hidden_reference,
    rms_norm_reference,
)
from grace.kernels.row_stable import linear


class EncoderAttention(Protocol):
    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: int,
        scale: float,
        key_mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class EncoderOps:
    """One implementation of each operation; its `..._reference` says what it computes."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]  # (x, gain, eps)
    attention: EncoderAttention
    add_product: Callable[[Tensor, Tensor, Tensor], Tensor]  # (x, hidden, weight)
    gate: Callable[[Tensor, Tensor], Tensor]  # (x, opening)
    open_hidden: Callable[[Tensor, Tensor], Tensor]  # (hidden, openings)


def add_product_reference(x: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """Return x + hidden W^T.   x [..., out], hidden [..., in], weight [out, in]

    The caller must not read x afterwards: a faster body returns the sum in its place.
    """
    return x + linear(hidden, weight)


PLAIN_ENCODER = EncoderOps(
    rms_norm=rms_norm_reference,
    attention=encoder_attention_reference,
    add_product=add_product_reference,
    gate=gate_reference,
    open_hidden=open_hidden_reference,
)
