"""The Triton bodies agree with their references, interpreted on a CPU and compiled on a GPU."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import REFERENCE
from support.command import run_python
from support.op_cases import CASES, mapped, normal, row_scales

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_ENCODER
from support import triton_agreement
from support.encoder_op_cases import CASES as ENCODER_CASES
from support.encoder_op_cases import on_copies
from support.triton_agreement import TOLERANCE, TRITON, Call, poisoned_memory

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.subprocess
def test_interpreted_bodies_encoders_and_rungs_agree_with_plain_ones(repository: Path) -> None:
    done = run_python(
        "import runpy; runpy.run_module('support.interpreted_triton', run_name='__main__')",
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": str(repository / "tests")},
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    decoder, encoder, rungs = outcome["calls"]
    assert (decoder > 40, encoder > 30, rungs) == (True, True, 10)
    assert outcome["different"] == []
    assert set(outcome["encoders"]) == {"interformer", "t5"}
    assert max(outcome["encoders"].values()) < 1e-5


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("self_attention", (torch.ones(4, 3, 2, 9)[..., :8],), "pool must be contiguous, got str"),
        ("row_factors", (torch.ones(4, 6).T, 1e-6), "x must be contiguous, got strides"),
    ],
)
def test_a_tensor_that_the_bodies_cannot_address_is_refused(
    name: str, arguments: tuple[Any, ...], message: str
) -> None:
    if name == "self_attention":
        arguments += (torch.zeros(5, 4, dtype=torch.int32), 1, torch.zeros(2, 4), 1.0)
    with pytest.raises(ValueError, match=message):
        TRITON[name](*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("call", list(triton_agreement.calls(DTYPES)), ids=lambda call: call.name)
def test_bodies_agree_on_the_gpu(call: Call) -> None:
    with poisoned_memory():
        assert triton_agreement.difference(call, "cuda") is None


def paper_inputs(name: str, dtype: torch.dtype, rows: int) -> tuple[Any, ...]:
    """On the GPU, 16 requests of `rows` beams in the paper's decoder."""
    rng = np.random.default_rng(rows)
    beams = 16 * rows
    if name == "self_attention":
        table = torch.from_numpy(rng.integers(4 * beams, size=(beams, 4), dtype=np.int32))
        generator = torch.Generator("cuda").manual_seed(1)
        pool = torch.randn(4 * beams, 3, 16, 128, device="cuda", generator=generator)
        arguments: tuple[Any, ...] = (
            pool.to(dtype),
            table,
            3,
            normal(rng, 16, 4),
            0.1,
            row_scales(rng, 4 * beams),
        )
    elif name == "cross_attention":
        keys, values = (normal(rng, 16, 128, 16, 128).transpose(1, 2).to(dtype) for _ in "kv")
        mask = torch.from_numpy(rng.random((16, 128)) < 0.8)
        mask[3] = False
        queries = normal(rng, beams, 2048).to(dtype)
        arguments = (queries, keys, values, mask, 0.1, row_scales(rng, beams))
    elif name == "row_factors":
        arguments = (normal(rng, beams, 2048).to(dtype), 1e-6)
    else:
        arguments = (normal(rng, beams, 512).to(dtype), row_scales(rng, beams), "relu")
    return tuple(x.cuda() if isinstance(x, Tensor) else x for x in arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 37, 1024], ids=lambda rows: f"beams={rows}")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in TRITON if name != "rearrange"])
def test_bodies_agree_at_the_papers_shape(name: str, dtype: torch.dtype, rows: int) -> None:
    arguments = paper_inputs(name, dtype, rows)
    expected = getattr(REFERENCE, name)(*arguments)
    with poisoned_memory():
        got = TRITON[name](*arguments)
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["self_attention", "cross_attention"])
def test_a_request_gets_the_same_bits_at_every_place_of_a_batch(name: str) -> None:
    arguments = list(paper_inputs(name, torch.bfloat16, 131))
    whole = TRITON[name](*arguments)
    order = torch.from_numpy(np.random.default_rng(2).permutation(16)).cuda()
    rows = (131 * order[:, None] + torch.arange(131, device="cuda")).flatten()
    for place in (1,) if name == "self_attention" else (0, 5):
        arguments[place] = arguments[place][rows]
    for place in () if name == "self_attention" else (1, 2, 3):
        arguments[place] = arguments[place][order]
    assert torch.equal(TRITON[name](*arguments), whole[rows])


CAPTURED = {
    **{name: (body, CASES[name][0]) for name, body in TRITON.items()},
    **{name: (on_copies(CUDA_ENCODER, name), cases[0]) for name, cases in ENCODER_CASES.items()},
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_operation_reads_its_inputs_at_each_replay(name: str) -> None:
    operation, case = CAPTURED[name]
    arguments = mapped(case.arguments(np.random.default_rng(5)), lambda x: x.cuda())
    fresh = arguments[0].clone()

    def run() -> Tensor:
        result: Tensor = operation(arguments[0].clone(), *arguments[1:])
        return result

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    arguments[0].copy_(fresh.roll(1, dims=0))
    graph.replay()
    torch.testing.assert_close(out, run(), rtol=0, atol=0, equal_nan=True)
