"""Eligible nodes on a GPU: one call of native code, which launches all kernels of a batch.

Predicates without a body in CUDA run their plain torch before it. All work goes to the current
stream, and nothing waits for the device. Each batch allocates its own memory, so batches may
overlap.
"""

from ctypes import POINTER, Structure, byref, c_int64, c_void_p, sizeof

import torch
from torch import Tensor

from grace.kernels.checks import address, current_stream, fields, require_tensor
from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import QueryTensors, UserTensors, value_addresses
from grace.kernels.eligibility.attributes import check_attributes
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.kernels.eligibility.gpu_plan import EligibilityPlan, Plan
from grace.kernels.eligibility.masks import masks_of
from grace.native.loader import declare, load_cuda_library

STEPS = ("attributes", "sets", "rules", "leaves")
"""The steps before those of the levels: step 4 + l makes the masks of level l."""

_ALL_STEPS = -1


class _SetQueries(Structure):
    _fields_ = (*fields(c_void_p, "offsets value_offsets values"), ("num_values", c_int64))


class _OtherMasks(Structure):
    _fields_ = (("masks", c_void_p), ("rows", c_int64))


class _Batch(Structure):
    """The layout of native/cuda/eligibility.cuh."""

    _fields_ = (
        ("requests", c_int64),
        ("bitmask", c_void_p),
        ("sets", POINTER(_SetQueries)),
        ("others", POINTER(_OtherMasks)),
        *fields(c_void_p, "eligible scratch"),
        *fields(c_int64, "scratch_bytes steps"),
    )


_eligible_nodes = declare(
    "grace_cuda_eligible_nodes",
    c_void_p,
    c_int64,
    c_int64,
    POINTER(Plan),
    POINTER(_Batch),
    library=load_cuda_library,
)


def eligible_nodes_on_gpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does."""
    require_eligibility(users, index)
    call = EligibleNodesCall(index.eligibility_plan, users)
    call.launch()
    return call.eligible


class EligibleNodesCall:
    """The memory and arguments of one batch.

    eligible  int16 [ceil(B / 16), nodes]   the result, once all steps have run
    """

    def __init__(self, plan: EligibilityPlan, users: UserTensors) -> None:
        """The users must stay alive until the last launch."""
        device, requests = plan.device, users.bitmask.shape[0]
        groups = masks_of(requests)
        for attributes in plan.attributes:
            check_attributes(attributes.table, users.bitmask)
        queries = [_set_queries(each.queries(users), requests, device) for each in plan.sets]
        self._others = [each.passes(users) for each in plan.others]
        others = [_other_masks(masks, groups, device) for masks in self._others]
        self.eligible = torch.empty(groups, plan.nodes, dtype=torch.int16, device=device)
        self._plan = plan
        self._batch = _Batch(
            requests=requests,
            bitmask=address("users.bitmask", users.bitmask, device, torch.int64),
            sets=(_SetQueries * len(queries))(*queries),
            others=(_OtherMasks * len(others))(*others),
            eligible=self.eligible.data_ptr(),
        )
        self._run(stream=0)  # without scratch memory it only returns how much it needs
        self._scratch = torch.empty(self._batch.scratch_bytes, dtype=torch.uint8, device=device)
        self._batch.scratch = self._scratch.data_ptr()

    def launch(self, step: int | None = None) -> None:
        """Run all steps, or a single one on what the steps before it have made."""
        self._batch.steps = _ALL_STEPS if step is None else 1 << step
        self._run(current_stream(self._plan.device))

    def _run(self, stream: int) -> None:
        plan, batch = self._plan.layout, self._batch
        _eligible_nodes(stream, sizeof(plan), sizeof(batch), byref(plan), byref(batch))


def _set_queries(queries: QueryTensors, requests: int, device: torch.device) -> _SetQueries:
    require_tensor("offsets of queries", queries.offsets, ends=requests + 1)
    require_tensor("offsets of values", queries.value_offsets, ends=requests + 1)
    return _SetQueries(**value_addresses(queries, device), num_values=queries.values.numel())


def _other_masks(masks: Tensor, groups: int, device: torch.device) -> _OtherMasks:
    require_tensor("masks of a predicate", masks, groups=groups, rows=masks.shape[-1])
    return _OtherMasks(address("masks of a predicate", masks, device, torch.int16), masks.shape[-1])
