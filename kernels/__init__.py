"""Functions over tensors: every hot operation of generation, its plain torch reference beside it.

`REFERENCE` is the definition of correct on any device; `load_ops(device)` is what a server uses.
Operations meet in the frozen table `Ops`; the values that cross it are in `kernels.tensors`.
"""

from kernels.ops import REFERENCE, Ops, load_ops
from kernels.tensors import (
    NO_BLOCK,
    Beams,
    BloomTensors,
    Candidates,
    DecodeIndex,
    Partitions,
    QueryTensors,
    UserTensors,
    on_device,
)

__all__ = [
    "NO_BLOCK",
    "REFERENCE",
    "Beams",
    "BloomTensors",
    "Candidates",
    "DecodeIndex",
    "Ops",
    "Partitions",
    "QueryTensors",
    "UserTensors",
    "load_ops",
    "on_device",
]
