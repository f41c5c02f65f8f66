"""What one batch asks of an index's plan, and the memory of its result.

Predicates without native code run their plain torch here, before native code joins their masks. The
structures have the layout of native/include/grace/eligibility.h.
"""

from ctypes import POINTER, Structure, byref, c_int64, c_void_p, sizeof
from typing import Any

import torch
from torch import Tensor

from grace.index.forms.lists import AskedLists
from grace.kernels.checks import address, fields, require_tensor
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.bits import check_bits
from grace.kernels.eligibility.masks import masks_of
from grace.kernels.eligibility.plan import EligibilityPlan, Plan


class _SetQueries(Structure):
    _fields_ = (*fields(c_void_p, "offsets value_offsets values"), ("num_values", c_int64))


class _OtherMasks(Structure):
    _fields_ = (("masks", c_void_p), ("rows", c_int64))


class Batch(Structure):
    _fields_ = (
        ("requests", c_int64),
        ("bitmask", c_void_p),
        ("sets", POINTER(_SetQueries)),
        ("others", POINTER(_OtherMasks)),
        *fields(c_void_p, "eligible scratch"),
        *fields(c_int64, "scratch_bytes steps"),
    )


ARGUMENTS = (c_int64, c_int64, POINTER(Plan), POINTER(Batch))
"""The types of `EligibilityBatch.arguments`."""


class EligibilityBatch:
    """
    eligible  int16 [ceil(B / 16), nodes]   the result, once native code has run
    """

    def __init__(self, plan: EligibilityPlan, users: UserTensors) -> None:
        """The users must stay alive until native code has run."""
        device, requests = plan.device, users.bitmask.shape[0]
        groups = masks_of(requests)
        for bits in plan.bits:
            check_bits(bits.table, users.bitmask)
        queries = [_set_queries(each.queries(users), requests, device) for each in plan.lists]
        self._others = [each.passes(users) for each in plan.others]
        others = [_other_masks(masks, groups, device) for masks in self._others]
        self._plan = plan
        self.eligible = torch.empty(groups, plan.nodes, dtype=torch.int16, device=device)
        self.layout = Batch(
            requests=requests,
            bitmask=address("users.bitmask", users.bitmask, device, torch.int64),
            sets=(_SetQueries * len(queries))(*queries),
            others=(_OtherMasks * len(others))(*others),
            eligible=self.eligible.data_ptr(),
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        plan, batch = self._plan.layout, self.layout
        return sizeof(plan), sizeof(batch), byref(plan), byref(batch)


def _set_queries(queries: AskedLists[Tensor], requests: int, device: torch.device) -> _SetQueries:
    require_tensor("offsets of queries", queries.offsets, ends=requests + 1)
    require_tensor("offsets of values", queries.value_offsets, ends=requests + 1)
    return _SetQueries(
        address("offsets of queries", queries.offsets, device, torch.int32),
        address("offsets of values", queries.value_offsets, device, torch.int32),
        address("values of queries", queries.value_ids, device, torch.int32),
        queries.value_ids.numel(),
    )


def _other_masks(masks: Tensor, groups: int, device: torch.device) -> _OtherMasks:
    require_tensor("masks of a predicate", masks, groups=groups, rows=masks.shape[-1])
    return _OtherMasks(address("masks of a predicate", masks, device, torch.int16), masks.shape[-1])
