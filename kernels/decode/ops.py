"""The table of hot operations: one implementation of each, chosen once at start-up.

An engine is such a table, so a variant is one line: `replace(REFERENCE, self_attention=...)`. The
agreement test walks the table's fields: an operation without a case there fails it.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from grace.configs.errors import DeviceError
from grace.kernels.decode.activate import activate_reference
from grace.kernels.decode.admission import AdmissionSlot, ReferenceSlot
from grace.kernels.decode.admit_children import admit_children_reference
from grace.kernels.decode.admit_children_cpu import admit_children_cpu
from grace.kernels.decode.admit_children_cuda import CudaSlot, admit_children_cuda
from grace.kernels.decode.cross_attention import cross_attention_reference
from grace.kernels.decode.rearrange import rearrange_reference
from grace.kernels.decode.row_factors import row_factors_reference
from grace.kernels.decode.select_beams import select_beams_reference
from grace.kernels.decode.self_attention import self_attention_reference
from grace.kernels.decode.tensors import Beams, Candidates, DecodeIndex, UserTensors

__all__ = ["REFERENCE", "Ops", "admission_slot", "load_ops"]


class SelfAttention(Protocol):
    def __call__(
        self,
        pool: Tensor,
        table: Tensor,
        step: int,
        bias: Tensor,
        scale: float,
        row_scale: Tensor | None = None,
    ) -> Tensor: ...


class CrossAttention(Protocol):
    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        key_mask: Tensor,
        scale: float,
        row_scale: Tensor | None = None,
        query_rows: Tensor | None = None,
    ) -> Tensor: ...


class RowFactors(Protocol):
    def __call__(self, x: Tensor, eps: float) -> Tensor: ...


class Activate(Protocol):
    def __call__(self, hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor: ...


class AdmitChildren(Protocol):
    def __call__(self, nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates: ...


class SelectBeams(Protocol):
    def __call__(
        self,
        logits: Tensor,
        scores: Tensor,
        candidates: Candidates,
        k: int,
        ordered: bool,
        row_scale: Tensor | None = None,
    ) -> Beams: ...


class Rearrange(Protocol):
    def __call__(self, table: Tensor, parents: Tensor, step: int) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Ops:
    self_attention: SelfAttention
    cross_attention: CrossAttention
    row_factors: RowFactors
    activate: Activate
    admit_children: AdmitChildren
    select_beams: SelectBeams
    rearrange: Rearrange


REFERENCE = Ops(
    self_attention=self_attention_reference,
    cross_attention=cross_attention_reference,
    row_factors=row_factors_reference,
    activate=activate_reference,
    admit_children=admit_children_reference,
    select_beams=select_beams_reference,
    rearrange=rearrange_reference,
)


def load_ops(device: torch.device) -> Ops:
    """The fastest operations for a device. What is missing fails here, not in a request."""
    if device.type == "cpu":
        return replace(REFERENCE, admit_children=admit_children_cpu)
    if device.type == "cuda":
        return _cuda_ops(device)
    raise DeviceError(
        f"device {device}: this version has no {device.type.upper()} operations; use device cpu"
    )


def _cuda_ops(device: torch.device) -> Ops:
    try:
        from grace.kernels.decode.ops_cuda import load_cuda_ops  # a CPU needs no Triton  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise DeviceError(
            f"device {device}: its operations need Triton: pip install 'grace-serving[gpu]'"
        ) from None
    return load_cuda_ops(device)


def admission_slot(ops: Ops) -> AdmissionSlot:
    """What a generation asks for the children of its beams; one for each that runs at a time."""
    if ops.admit_children is admit_children_cuda:
        return CudaSlot()
    return ReferenceSlot(ops.admit_children)
