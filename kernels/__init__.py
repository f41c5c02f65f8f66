"""Functions over tensors: every hot operation of generation, next to its plain torch reference.

`REFERENCE` is the definition of correct on any device; a server uses `load_ops(device)`. `Ops` is
the frozen table of the operations, and `grace.kernels.decode.tensors` has the values that they take
and return. X.py defines an operation; X_cpu.py, X_cuda.py and X_triton.py are its fast bodies.
"""

from grace.kernels.attention.self_attention import NO_BLOCK
from grace.kernels.decode.admit_children import AdmissionSlot
from grace.kernels.decode.ops import REFERENCE, Ops, with_eligible
from grace.kernels.decode.tensors import Beams, Candidates, DecodeIndex
from grace.kernels.decode.users import UserTensors, on_device
from grace.kernels.devices import device_named, require_device
from grace.kernels.load import (
    admission_slot,
    load_encoder_ops,
    load_feature_ops,
    load_ops,
    load_rounded_ops,
    require_fp8,
)
