"""Eligible nodes on the CPU: C++ on all cores, native/src/eligible_nodes.cpp."""

from ctypes import c_int32

import torch
from torch import Tensor

from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.batch import ARGUMENTS, EligibilityBatch
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.native.loader import declare

_eligible_nodes = declare("grace_eligible_nodes", c_int32, *ARGUMENTS)


def eligible_nodes_on_cpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does, on torch.get_num_threads() threads."""
    require_eligibility(users, index)
    batch = EligibilityBatch(index.eligibility_plan, users)
    _eligible_nodes(torch.get_num_threads(), *batch.arguments)
    return batch.eligible
