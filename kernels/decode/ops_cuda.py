"""The operations of an NVIDIA GPU. Only `load_ops` imports this, and only for such a device."""

import torch

from grace.configs.errors import DeviceError
from grace.kernels.decode.activate_triton import activate_triton
from grace.kernels.decode.admit_children_cuda import admit_children_cuda
from grace.kernels.decode.cross_attention_triton import cross_attention_triton
from grace.kernels.decode.ops import Ops
from grace.kernels.decode.rearrange_triton import rearrange_triton
from grace.kernels.decode.row_factors_triton import row_factors_triton
from grace.kernels.decode.select_beams_cuda import prepare_selection, select_beams_cuda
from grace.kernels.decode.self_attention_triton import self_attention_triton
from grace.native.nvcc import LEAST_CAPABILITY

__all__ = ["load_cuda_ops"]


def load_cuda_ops(device: torch.device) -> Ops:
    """Opens the library of kernels and makes it ready on the device."""
    if not torch.cuda.is_available():
        raise DeviceError(f"device {device}: torch finds no GPU on this machine; use device cpu")
    _require_capability(device)
    prepare_selection(device)
    return Ops(
        self_attention=self_attention_triton,
        cross_attention=cross_attention_triton,
        row_factors=row_factors_triton,
        activate=activate_triton,
        admit_children=admit_children_cuda,
        select_beams=select_beams_cuda,
        rearrange=rearrange_triton,
    )


def _require_capability(device: torch.device) -> None:
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        raise DeviceError(
            f"device {device}: {torch.cuda.get_device_name(device)} has compute capability "
            f"{found[0]}.{found[1]}, the kernels need {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} "
            "or more; use another GPU, or device cpu"
        )
