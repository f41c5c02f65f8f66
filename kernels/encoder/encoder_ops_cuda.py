"""An encoder's operations on an NVIDIA GPU. Only `load_encoder_ops` imports this."""

from torch import Tensor

from grace.kernels.decode.shapes import require_contiguous
from grace.kernels.encoder.encoder_attention_triton import encoder_attention_triton
from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.kernels.encoder.gates_triton import gate_triton, open_hidden_triton
from grace.kernels.encoder.rms_norm_triton import rms_norm_triton

__all__ = ["CUDA_ENCODER", "add_product_in_place"]


def add_product_in_place(x: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """As `add_product_reference`: x is the product's accumulator, so adding costs no pass of its
    own over memory."""
    require_contiguous(x=x)
    x.view(-1, x.shape[-1]).addmm_(hidden.reshape(-1, hidden.shape[-1]), weight.t())
    return x


CUDA_ENCODER = EncoderOps(
    rms_norm=rms_norm_triton,
    attention=encoder_attention_triton,
    add_product=add_product_in_place,
    gate=gate_triton,
    open_hidden=open_hidden_triton,
)
