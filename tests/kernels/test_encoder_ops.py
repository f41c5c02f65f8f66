"""The encoder's operations: Triton's agree with plain torch on a GPU, and refuse wrong inputs.

test_triton.py compares them interpreted.
"""

from dataclasses import fields
from typing import Any

import pytest
import torch

from grace.kernels.encoder.encoder_attention import Part
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.encoder.token_product import Run
from grace.kernels.ops_cuda import CUDA_ENCODER
from support.encoder_cases import INTERFORMER, T5, interformer_spec, t5_spec
from support.encoder_op_cases import CASES, encoder_calls, encoder_difference
from support.triton_agreement import Call, difference, poisoned_memory

X = torch.ones(2, 3, 8)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def test_every_operation_has_cases() -> None:
    assert list(CASES) == [field.name for field in fields(EncoderOps)]
    assert all(CASES.values())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("rms_norm", (torch.ones(4, 6), torch.ones(5), 1e-6), r"gain must be \[d\] = \[6\], got"),
        ("attention", (torch.ones(2, 3, 8), *2 * [torch.ones(2, 5, 6)], 2, 1.0), "keys must be"),
        ("attention", (*3 * [torch.ones(2, 3, 8)], 3, 1.0), "inner must be a multiple of heads"),
        (
            "attention",
            (*3 * [torch.ones(2, 3, 8)], 2, 1.0, None, torch.ones(2, 6)),
            r"bias must be \[heads, distances\] = \[2, 5\], got \[2, 6\]",
        ),
        (
            "attention",
            (*3 * [torch.ones(2, 7, 8)], 2, 1.0, None, None, (Part(0, 7, 3, 5),)),
            r"Part\(query=0, queries=7, key=3, keys=5\) must be within 7 queries and 7 keys",
        ),
        (
            "attention",
            (*3 * [torch.ones(2, 7, 8)], 2, 1.0, None, None, None, torch.ones(2, 7, 4)),
            r"out must be \[requests, count, inner\] = \[2, 7, 8\], got \[2, 7, 4\]",
        ),
        (
            "token_product",
            (X, torch.ones(2, 4, 8), torch.ones(2, 5, 4), (Run(0, 0, 3),), "nothing"),
            r"weight must be \[runs, wide, inner\] = \[1, 4, 8\], got \[2, 4, 8\]",
        ),
        (
            "token_product",
            (X, torch.ones(1, 4, 8), torch.ones(2, 5, 4), (Run(1, 0, 3),), "nothing"),
            "must be within 3 tokens and 5 of out",
        ),
        (
            "token_product",
            (X, torch.ones(1, 4, 8), torch.ones(2, 5, 4), (Run(0, 0, 3),), "open"),
            "other must be given for open and add alone",
        ),
        (
            "token_product",
            (X, torch.ones(1, 4, 8), torch.ones(2, 5, 4), (Run(0, 0, 3),), "open", X),
            r"other must be \[requests, one, wide\] = \[2, 1, 4\], got",
        ),
        (
            "token_product",
            (X, torch.ones(1, 4, 8), torch.ones(2, 5, 4), (Run(0, 0, 3),), "gate"),
            "a gate needs a square weight",
        ),
        ("share_user", (X, torch.ones(2, 3, 1), torch.ones(2, 2, 8), (0, 2)), "must be within 3"),
    ],
)
@pytest.mark.parametrize("ops", [PLAIN_ENCODER, CUDA_ENCODER], ids=["plain", "cuda"])
def test_wrong_shapes_are_refused_by_name(
    ops: EncoderOps, name: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(*arguments)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("rms_norm", (torch.ones(8), 1e-6)),
        (
            "token_product",
            (torch.ones(1, 4, 8), torch.ones(3, 5, 4), (Run(0, 0, 5),), "nothing"),
        ),
        ("share_user", (torch.ones(3, 5, 1), torch.ones(3, 2, 8), (0,))),
        ("add_product", (torch.ones(3, 5, 2), torch.ones(8, 2))),
        ("attention", (*2 * [torch.ones(3, 5, 8)], 2, 1.0)),
    ],
)
def test_rows_that_are_not_contiguous_are_refused(name: str, more: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        getattr(CUDA_ENCODER, name)(torch.ones(3, 8, 5).transpose(1, 2), *more)


@pytest.mark.gpu
@pytest.mark.parametrize("call", list(encoder_calls(DTYPES)), ids=lambda call: call.name)
def test_operations_agree_on_the_gpu(call: Call) -> None:
    with poisoned_memory():
        assert difference(call, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.08)], ids=str
)
@pytest.mark.parametrize(
    "spec",
    [INTERFORMER, T5, interformer_spec(d_model=64, heads=2), t5_spec(64, 4, 16)],
    ids=["interformer", "t5", "interformer-even", "t5-even"],
)
def test_encoders_on_the_gpu_are_those_of_the_cpu(
    spec: Any, dtype: torch.dtype, tolerance: float
) -> None:
    assert encoder_difference(spec, "cuda", dtype) < tolerance
