"""Functions over tensors: every hot operation of generation, its plain torch reference beside it.

`REFERENCE` is the definition of correct on any device; `load_ops(device)` is what a server uses.
Operations meet in the frozen table `Ops`; the values that cross it are in
`grace.kernels.decode.tensors`.
"""

from grace.kernels.decode.admission import AdmissionSlot, ReferenceSlot
from grace.kernels.decode.ops import REFERENCE, Ops, admission_slot, load_ops
from grace.kernels.decode.tensors import (
    NO_BLOCK,
    Beams,
    BloomTensors,
    Candidates,
    DecodeIndex,
    QueryTensors,
    UserTensors,
    on_device,
)

__all__ = [
    "NO_BLOCK",
    "REFERENCE",
    "AdmissionSlot",
    "Beams",
    "BloomTensors",
    "Candidates",
    "DecodeIndex",
    "Ops",
    "QueryTensors",
    "ReferenceSlot",
    "UserTensors",
    "admission_slot",
    "load_ops",
    "on_device",
]
