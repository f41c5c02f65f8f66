"""Eligible nodes on a GPU: one call of native code, which launches all kernels of a batch.

All work goes to the current stream, and nothing waits for the device. Each batch allocates its own
memory, so batches may overlap.
"""

from ctypes import c_void_p

import torch
from torch import Tensor

from grace.kernels.checks import current_stream
from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.batch import ARGUMENTS, EligibilityBatch
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.kernels.eligibility.plan import EligibilityPlan
from grace.native.loader import declare, load_cuda_library

STEPS = ("attributes", "sets", "rules", "leaves")
"""The steps before those of the levels: step 4 + l makes the masks of level l."""

_ALL_STEPS = -1

_eligible_nodes = declare(
    "grace_cuda_eligible_nodes", c_void_p, *ARGUMENTS, library=load_cuda_library
)


def eligible_nodes_on_gpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does."""
    require_eligibility(users, index)
    call = EligibleNodesCall(index.eligibility_plan, users)
    call.launch()
    return call.eligible


class EligibleNodesCall(EligibilityBatch):
    """A batch with the memory that its kernels need between them."""

    def __init__(self, plan: EligibilityPlan, users: UserTensors) -> None:
        super().__init__(plan, users)
        self._device = plan.device
        _eligible_nodes(0, *self.arguments)  # without scratch memory it only returns how much
        size = self.layout.scratch_bytes
        self._scratch = torch.empty(size, dtype=torch.uint8, device=plan.device)
        self.layout.scratch = self._scratch.data_ptr()

    def launch(self, step: int | None = None) -> None:
        """Run all steps, or a single one on what the steps before it have made."""
        self.layout.steps = _ALL_STEPS if step is None else 1 << step
        _eligible_nodes(current_stream(self._device), *self.arguments)
