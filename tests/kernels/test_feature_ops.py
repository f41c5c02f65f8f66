"""Operations of the features stage: CUDA's agree with plain torch, and wrong inputs are refused."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from grace.kernels.features.feature_ops import (
    PLAIN_FEATURES,
    FeatureOps,
    SingleInputs,
    SingleTables,
)

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_FEATURES
from support.emulated_cuda import emulated_cuda
from support.feature_op_cases import CASES, feature_calls
from support.triton_agreement import Call, difference, poisoned_memory

TABLE = torch.ones(5, 3)
TABLES = SingleTables(torch.ones(0, 4), torch.ones(0), TABLE, TABLE)
INPUTS = SingleInputs(
    torch.zeros(2, 4),
    torch.zeros(2, 1, dtype=torch.int32),
    torch.zeros(5, dtype=torch.int32),
    torch.zeros(0, dtype=torch.int32),
)
CALLS = pytest.mark.parametrize(
    "call",
    list(feature_calls((torch.float32, torch.float16, torch.bfloat16))),
    ids=lambda call: call.name,
)


def test_every_operation_has_cases() -> None:
    assert list(CASES) == [field.name for field in fields(FeatureOps)]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "sum_events",
            (TABLE, torch.zeros(2, 7, 4, dtype=torch.int32), (3, 5)),
            r"events must be \[requests, places, ids\] = \[2, 8, 4\], got \[2, 7, 4\]",
        ),
        ("sum_events", (TABLE, torch.zeros(2, 7, 4), (3, 4)), "events must be int32, got float32"),
        (
            "join_inputs",
            (TABLES, replace(INPUTS, bag_rows=torch.zeros(2, 7, dtype=torch.int32))),
            r"bag_rows must be \[n\] = \[14\], got \[2, 7\]",
        ),
        (
            "join_inputs",
            (TABLES, replace(INPUTS, bag_offsets=torch.zeros(6, dtype=torch.int32))),
            "6 bag_offsets and 0 biases are not those of 2 requests",
        ),
    ],
)
@pytest.mark.parametrize("ops", [PLAIN_FEATURES, CUDA_FEATURES], ids=["plain", "cuda"])
def test_wrong_inputs_are_refused_by_name(
    ops: FeatureOps, name: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(*arguments)


@pytest.mark.subprocess
@CALLS
def test_operations_agree_on_the_host(call: Call) -> None:
    with emulated_cuda(), poisoned_memory():
        assert difference(call, "cpu") is None


@pytest.mark.gpu
@CALLS
def test_operations_agree_on_the_gpu(call: Call) -> None:
    with poisoned_memory():
        assert difference(call, "cuda") is None
