"""What encoder and decoder layers of the T5 family share."""

import torch
from torch import Tensor

from grace.kernels.encoder.norm_and_gates import rms_norm_reference as rms_norm
from grace.kernels.row_stable import gelu, linear
from grace.model.definition.spec import Ffn

__all__ = ["feed_forward", "hidden_units", "linear", "rms_norm"]


def feed_forward(x: Tensor, weight_in: Tensor, weight_out: Tensor, kind: Ffn) -> Tensor:
    """relu(x W_in) W_out, or (gelu(x W_gate) * x W_linear) W_out with gelu's tanh form."""
    return linear(hidden_units(x, weight_in, kind), weight_out)


def hidden_units(x: Tensor, weight_in: Tensor, kind: Ffn) -> Tensor:
    """What a feed-forward's second product reads."""
    hidden = linear(x, weight_in)
    if kind == "relu":
        return torch.relu(hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return gelu(gate) * value
