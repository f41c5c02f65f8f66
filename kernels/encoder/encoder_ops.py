"""The table of an encoder's operations, and its plain torch bodies for any device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from grace.kernels.encoder import token_product as products
from grace.kernels.encoder.arrange_tokens import arrange_tokens_reference
from grace.kernels.encoder.encoder_attention import (
    TokenQueries,
    encoder_attention_differentiated,
    encoder_attention_reference,
)
from grace.kernels.row_stable import rms_norm_reference

ArrangeTokens: TypeAlias = Callable[
    [Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor, Tensor]
]
ShareUser: TypeAlias = Callable[[Tensor, Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class EncoderOps:
    """One implementation of each operation; its `..._reference` says what it computes."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]  # (x, gain, eps)
    attention: Callable[[TokenQueries], Tensor]
    arrange_tokens: ArrangeTokens  # (summaries, user, states, masks)
    token_product: Callable[[products.TokenProduct], Tensor]
    share_user: ShareUser  # (tokens, squares, user, begins)


PLAIN_ENCODER = EncoderOps(
    rms_norm=rms_norm_reference,
    attention=encoder_attention_reference,
    arrange_tokens=arrange_tokens_reference,
    token_product=products.token_product_reference,
    share_user=products.share_user_reference,
)

TRAINING_ENCODER = replace(PLAIN_ENCODER, attention=encoder_attention_differentiated)
