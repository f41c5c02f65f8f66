"""The table of an encoder's operations, and its plain torch bodies for any device.

A faster table may overwrite what `add_product` adds to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from grace.kernels.encoder.arrange_tokens import arrange_tokens_reference
from grace.kernels.encoder.encoder_attention import TokenQueries, encoder_attention_reference
from grace.kernels.encoder.norm_and_gates import rms_norm_reference
from grace.kernels.encoder.token_product import (
    TokenProduct,
    share_user_reference,
    token_product_reference,
)
from grace.kernels.row_stable import linear

ArrangeTokens: TypeAlias = Callable[
    [Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor, Tensor]
]  # (summaries, user, states, masks)
ShareUser: TypeAlias = Callable[
    [Tensor, Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]
]  # (tokens, squares, user, begins)


@dataclass(frozen=True, slots=True)
class EncoderOps:
    """One implementation of each operation; its `..._reference` says what it computes."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]  # (x, gain, eps)
    attention: Callable[[TokenQueries], Tensor]
    add_product: Callable[[Tensor, Tensor, Tensor], Tensor]  # (x, hidden, weight)
    arrange_tokens: ArrangeTokens
    token_product: Callable[[TokenProduct], Tensor]
    share_user: ShareUser


def add_product_reference(x: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """Return x + hidden W^T.   x [..., out], hidden [..., in], weight [out, in]

    The caller must not read x afterwards: a faster body returns the sum in its place.
    """
    return x + linear(hidden, weight)


PLAIN_ENCODER = EncoderOps(
    rms_norm=rms_norm_reference,
    attention=encoder_attention_reference,
    add_product=add_product_reference,
    arrange_tokens=arrange_tokens_reference,
    token_product=token_product_reference,
    share_user=share_user_reference,
)
