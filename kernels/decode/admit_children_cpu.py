"""Admission on the CPU: C++ from the header that defines matching, several threads over the rows.

What makes it quick: it holds no interpreter lock, builds no tensor of all children, stops a test at
the first word or query that decides it, and reads the tensors in place.
"""

from ctypes import byref, sizeof

import torch
from torch import Tensor

from grace.kernels.decode.admission import AdmissionSet, admission_of
from grace.kernels.decode.admit_children import check_admission, fan_outs
from grace.kernels.decode.tensors import Candidates, DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.native.loader import declare

_CHILDREN_PER_THREAD = 16384  # testing fewer takes less time than starting a thread

_admit_children = declare(
    "grace_admit_children(int32, int64, pointer, int64, pointer, int64, pointer, pointer, int64, "
    "pointer, pointer)"
)


def admit_children_cpu(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates:
    """Compute what `admit_children_reference` does, on up to torch.get_num_threads() threads."""
    check_admission(nodes, users, index)
    beams = nodes.contiguous()
    room = int(fan_outs(beams, index).sum())
    threads = min(torch.get_num_threads(), 1 + room // _CHILDREN_PER_THREAD)
    offsets = torch.empty(beams.numel() + 1, dtype=torch.int32)
    tokens, children = (torch.empty(room, dtype=torch.int32) for _ in range(2))
    admission, sets = admission_of(users, index)
    _admit_children(
        *(threads, sizeof(admission), byref(admission), len(sets)),
        *((AdmissionSet * len(sets))(*sets), beams.shape[1], beams.data_ptr()),
        *(offsets.data_ptr(), room, tokens.data_ptr(), children.data_ptr()),
    )
    admitted = int(offsets[-1])
    return Candidates(offsets, tokens[:admitted], children[:admitted])
