"""Eligible nodes of one batch: C++ on all cores of a CPU, or one call that launches all kernels.

Predicates without native code run their plain torch here, before native code joins their masks. On
a GPU all work goes to the current stream, and nothing waits for the device. Each batch has its own
memory, so batches may overlap.
"""

from ctypes import POINTER, Structure, byref, c_int64, c_void_p, sizeof
from typing import Any

import torch
from torch import Tensor

from grace.kernels.checks import address, current_stream, fields, require_tensor
from grace.kernels.decode.tensors import DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.eligible_nodes import require_eligibility
from grace.kernels.eligibility.plan import EligibilityPlan
from grace.kernels.eligibility.tensors import masks_of
from grace.native.loader import declare, declare_cuda

STEPS = ("attributes", "sets", "rules")
"""A GPU's steps before those of the levels: step 3 + l makes the masks of level l. The first step
also has ranges and flights, and the second has properties."""

_ALL_STEPS = -1


class _NamedValues(Structure):
    _fields_ = (*fields(c_void_p, "offsets ids"), ("size", c_int64))


class _ListQueries(Structure):
    _fields_ = (("open", c_void_p), *fields(_NamedValues, "included excluded"))


class _OtherMasks(Structure):
    _fields_ = (("masks", c_void_p), ("rows", c_int64))


class Batch(Structure):
    _fields_ = (
        ("requests", c_int64),
        ("bitmask", c_void_p),
        ("lists", POINTER(_ListQueries)),
        ("numbers", POINTER(c_void_p)),
        ("others", POINTER(_OtherMasks)),
        *fields(c_void_p, "eligible scratch"),
        *fields(c_int64, "scratch_bytes steps"),
    )


_on_cpu = declare("grace_eligible_nodes(int32, int64, int64, pointer, pointer)")
_on_gpu = declare_cuda("grace_cuda_eligible_nodes(pointer, int64, int64, pointer, pointer)")


def eligible_nodes_on_cpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    """Compute what `eligible_nodes_reference` does, on torch.get_num_threads() threads."""
    require_eligibility(users, index)
    batch = EligibilityBatch(index.eligibility_plan, users)
    _on_cpu(torch.get_num_threads(), *batch.arguments)
    return batch.eligible


def eligible_nodes_on_gpu(users: UserTensors, index: DecodeIndex) -> Tensor:
    require_eligibility(users, index)
    call = EligibleNodesCall(index.eligibility_plan, users)
    call.launch()
    return call.eligible


class EligibilityBatch:
    def __init__(self, plan: EligibilityPlan, users: UserTensors) -> None:
        """The users must stay alive until native code has run."""
        device, requests = plan.device, users.bitmask.shape[0]
        groups = masks_of(requests)
        for bits in plan.bits:
            bits.check(users)
        unasked = users.unasked
        lists = [
            _ListQueries()
            if each.component in unasked
            else _list_queries(each.asked(users), requests, device)
            for each in plan.lists
        ]
        numbers = [
            None if each.component in unasked else _numbers(each.numbers(users), requests, device)
            for each in plan.intervals
        ]
        self._others = [each.passes(users) for each in plan.others]
        others = [_other_masks(masks, groups, device) for masks in self._others]
        self._plan = plan
        # int16 [ceil(B / 16), masks]: the result, once native code has run
        self.eligible = torch.empty(groups, plan.masks, dtype=torch.int16, device=device)
        self.layout = Batch(
            requests=requests,
            bitmask=address("users.bitmask", users.bitmask, device, torch.int64),
            lists=(_ListQueries * len(lists))(*lists),
            numbers=(c_void_p * len(numbers))(*numbers),
            others=(_OtherMasks * len(others))(*others),
            eligible=self.eligible.data_ptr(),
        )
        own, shared = self.layout, plan.layout
        self.arguments = sizeof(shared), sizeof(own), byref(shared), byref(own)


class EligibleNodesCall(EligibilityBatch):
    """A batch with the memory that a GPU's kernels need between them."""

    def __init__(self, plan: EligibilityPlan, users: UserTensors) -> None:
        super().__init__(plan, users)
        _on_gpu(0, *self.arguments)  # without scratch memory it only reports how much it needs
        size = max(1, self.layout.scratch_bytes)  # without predicates it needs none
        self._scratch = torch.empty(size, dtype=torch.uint8, device=plan.device)
        self.layout.scratch = self._scratch.data_ptr()

    def launch(self, step: int | None = None) -> None:
        """Run all steps, or a single one on what the steps before it have made."""
        self.layout.steps = _ALL_STEPS if step is None else 1 << step
        _on_gpu(current_stream(self._plan.device), *self.arguments)


def _list_queries(asked: Any, requests: int, device: torch.device) -> _ListQueries:
    require_tensor("open of queries", asked.open, requests=requests)
    included, excluded = (
        _named_values(named, requests, device) for named in (asked.included, asked.excluded)
    )
    opens = address("open of queries", asked.open, device, torch.uint8)
    return _ListQueries(opens, included, excluded)


def _named_values(
    named: tuple[Tensor, Tensor], requests: int, device: torch.device
) -> _NamedValues:
    offsets, ids = named
    require_tensor("offsets of values", offsets, ends=requests + 1)
    return _NamedValues(
        address("offsets of values", offsets, device, torch.int32),
        address("values of queries", ids, device, torch.int32),
        ids.numel(),
    )


def _numbers(numbers: Tensor, requests: int, device: torch.device) -> int:
    require_tensor("numbers", numbers, requests=requests)
    return address("numbers", numbers, device, torch.float64)


def _other_masks(masks: Tensor, groups: int, device: torch.device) -> _OtherMasks:
    require_tensor("masks of a predicate", masks, groups=groups, rows=masks.shape[-1])
    return _OtherMasks(address("masks of a predicate", masks, device, torch.int16), masks.shape[-1])
