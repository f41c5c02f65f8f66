"""Chooses the operations for a device, once at start-up. What is missing fails here, not later.

Functions import the operations of a GPU: these need Triton, which a machine without a GPU does not
install.
"""

from dataclasses import replace

import torch

from grace.configs.errors import DeviceError
from grace.configs.extras import install_command
from grace.kernels.decode.admit_children import AdmissionSlot, ReferenceSlot
from grace.kernels.decode.admit_children_cpu import admit_children_cpu
from grace.kernels.decode.admit_children_cuda import CudaSlot, admit_children_cuda
from grace.kernels.decode.ops import REFERENCE, Ops
from grace.kernels.decode.select_beams_cuda import prepare_selection
from grace.kernels.devices import require_device
from grace.kernels.eligibility.batch import eligible_nodes_on_cpu
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.kernels.features.feature_ops import PLAIN_FEATURES, FeatureOps
from grace.kernels.products.fp8_products import REFERENCE_ROUNDED, RoundedOps
from grace.native.build import FP8_CAPABILITY, LEAST_CAPABILITY


def load_ops(device: torch.device) -> Ops:
    """Return the decoder's fastest operations on a device, ready to run there."""
    if device.type == "cpu":
        return replace(
            REFERENCE, eligible_nodes=eligible_nodes_on_cpu, admit_children=admit_children_cpu
        )
    decoder, _, _ = _cuda_tables(device)
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        raise DeviceError(
            f"device {device}: {torch.cuda.get_device_name(device)} has compute capability "
            f"{found[0]}.{found[1]}, the kernels need {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} "
            "or more; use another GPU, or device cpu"
        )
    with torch.cuda.device(device):
        prepare_selection()
    return decoder


def load_rounded_ops(device: torch.device) -> RoundedOps:
    """Return the products of precision fp8 on a device, ready to run there."""
    if device.type != "cuda":
        return REFERENCE_ROUNDED
    require_fp8(device)
    _cuda_tables(device)
    from grace.kernels.products import fp8_products_cuda  # noqa: PLC0415

    with torch.cuda.device(device):
        fp8_products_cuda.prepare_fp8_products()
    return fp8_products_cuda.CUDA_ROUNDED


def require_fp8(device: torch.device) -> None:
    """Refuse a GPU without the instructions of fp8_products.cu."""
    require_device(device)
    found = torch.cuda.get_device_capability(device)
    if found != FP8_CAPABILITY:
        raise DeviceError(
            f"precision: fp8 needs a GPU of compute capability {FP8_CAPABILITY[0]}."
            f"{FP8_CAPABILITY[1]} (H100, H200), {torch.cuda.get_device_name(device)} has "
            f"{found[0]}.{found[1]}; use bf16"
        )


def load_encoder_ops(device: torch.device) -> EncoderOps:
    """Return the encoder's fastest operations for inference on a device."""
    if device.type != "cuda":
        return PLAIN_ENCODER
    _, encoder, _ = _cuda_tables(device)
    return encoder


def load_feature_ops(device: torch.device) -> FeatureOps:
    """Return the features stage's fastest operations on a device."""
    if device.type != "cuda":
        return PLAIN_FEATURES
    _, _, features = _cuda_tables(device)
    return features


def admission_slot(ops: Ops) -> AdmissionSlot:
    """Return a slot for one generation at a time, which admits children as `ops` does."""
    if ops.admit_children is admit_children_cuda:
        return CudaSlot()
    return ReferenceSlot(ops.admit_children)


def _cuda_tables(device: torch.device) -> tuple[Ops, EncoderOps, FeatureOps]:
    require_device(device)
    try:
        from grace.kernels.ops_cuda import CUDA_TABLES  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise DeviceError(
            f"device {device}: its operations need Triton: {install_command('gpu')}"
        ) from None
    return CUDA_TABLES
