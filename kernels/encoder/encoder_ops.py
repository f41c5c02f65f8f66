"""The table of an encoder's operations: an encoder is given one, and says what it computes once.

`PLAIN_ENCODER` is plain torch, for any device and for training. A faster table may overwrite what
`add_product` adds to.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from grace.kernels.encoder.encoder_attention import encoder_attention_reference
from grace.kernels.encoder.gates import gate_reference, open_hidden_reference
from grace.kernels.encoder.rms_norm import rms_norm_reference
from grace.kernels.row_stable import linear

__all__ = ["PLAIN_ENCODER", "EncoderOps", "add_product_reference", "load_encoder_ops"]


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, gain: Tensor, eps: float) -> Tensor: ...


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


class AddProduct(Protocol):
    def __call__(self, x: Tensor, hidden: Tensor, weight: Tensor) -> Tensor: ...


class Gate(Protocol):
    def __call__(self, x: Tensor, opening: Tensor) -> Tensor: ...


class OpenHidden(Protocol):
    def __call__(self, hidden: Tensor, openings: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class EncoderOps:
    rms_norm: RmsNorm
    attention: EncoderAttention
    add_product: AddProduct
    gate: Gate
    open_hidden: OpenHidden


def add_product_reference(x: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """x + hidden W^T, x [..., out], hidden [..., in], weight [out, in]. Do not read x afterwards:
    a faster body returns the sum in its place."""
    return x + linear(hidden, weight)


PLAIN_ENCODER = EncoderOps(
    rms_norm=rms_norm_reference,
    attention=encoder_attention_reference,
    add_product=add_product_reference,
    gate=gate_reference,
    open_hidden=open_hidden_reference,
)


def load_encoder_ops(device: torch.device) -> EncoderOps:
    """The fastest for inference on a device. On a GPU they need Triton, as `load_ops` says."""
    if device.type != "cuda":
        return PLAIN_ENCODER
    from grace.kernels.encoder.encoder_ops_cuda import CUDA_ENCODER  # a CPU needs no Triton  # noqa: PLC0415

    return CUDA_ENCODER
