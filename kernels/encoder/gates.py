"""Gates of an encoder: what is let through, element by element."""

import torch
from torch import Tensor

from grace.kernels.decode.shapes import require_tensor
from grace.kernels.row_stable import sigmoid

__all__ = ["check_gate", "check_open_hidden", "gate_reference", "open_hidden_reference"]


def gate_reference(x: Tensor, opening: Tensor) -> Tensor:
    """x * sigmoid(opening).   [B, T, d] both -> [B, T, d]"""
    check_gate(x, opening)
    return x * sigmoid(opening)


def open_hidden_reference(hidden: Tensor, openings: Tensor) -> Tensor:
    """relu(hidden) * 2 sigmoid(openings), a request's openings for all its tokens.

    hidden [B, T, d_ff], openings [B, d_ff] -> [B, T, d_ff]
    """
    check_open_hidden(hidden, openings)
    return torch.relu(hidden) * (2.0 * sigmoid(openings))[:, None, :]


def check_gate(x: Tensor, opening: Tensor) -> None:
    _require_tokens("x", x)
    requests, tokens, d = x.shape
    require_tensor("opening", opening, x.dtype, requests=requests, tokens=tokens, d=d)


def check_open_hidden(hidden: Tensor, openings: Tensor) -> None:
    _require_tokens("hidden", hidden)
    requests, _, d_ff = hidden.shape
    require_tensor("openings", openings, hidden.dtype, requests=requests, d_ff=d_ff)


def _require_tokens(name: str, tensor: Tensor) -> None:
    if tensor.dim() != 3:
        raise ValueError(f"{name} must be [requests, tokens, d], got {list(tensor.shape)}")
