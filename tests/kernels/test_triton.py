"""The Triton bodies on a GPU: the paper's shapes, a batch's places, and captured launches."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import REFERENCE
from grace.kernels.decode.cross_attention import BeamQueries
from grace.kernels.decode.self_attention import PagedPrefixes
from grace.model.definition.inputs import Value, map_tensors
from support.named_tensors import named_tensors
from support.op_cases import CASES, normal, row_scales

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_DECODER, CUDA_ENCODER
from support.agreement import DTYPES, TOLERANCE, TRITON, poisoned_memory
from support.encoder_op_cases import CASES as ENCODER_CASES
from support.encoder_op_cases import on_copies

pytestmark = pytest.mark.gpu

Arguments = tuple[Any, ...]


def there(value: Value) -> Value:
    return map_tensors(value, torch.Tensor.cuda)


def prefixes(rng: np.random.Generator, dtype: torch.dtype, rows: int) -> Arguments:
    table = torch.from_numpy(rng.integers(4 * rows, size=(rows, 4), dtype=np.int32))
    generator = torch.Generator("cuda").manual_seed(1)
    pool = torch.randn(4 * rows, 3, 16, 128, device="cuda", generator=generator).to(dtype)
    bias, scales = normal(rng, 16, 4), row_scales(rng, 4 * rows)
    return (PagedPrefixes(pool, table, 3, bias, 0.1, scales),)


def queries(rng: np.random.Generator, dtype: torch.dtype, rows: int) -> Arguments:
    keys, values = (normal(rng, 16, 128, 16, 128).transpose(1, 2).to(dtype) for _ in "kv")
    mask = torch.from_numpy(rng.random((16, 128)) < 0.8)
    mask[3] = False
    asked = normal(rng, rows, 2048).to(dtype)
    return (BeamQueries(asked, keys, values, mask, 0.1, row_scales(rng, rows)),)


PAPER: Mapping[str, Callable[[np.random.Generator, torch.dtype, int], Arguments]] = {
    "self_attention": prefixes,
    "cross_attention": queries,
    "row_factors": lambda rng, dtype, rows: (normal(rng, rows, 2048).to(dtype), 1e-6),
    "activate": lambda rng, dtype, rows: (
        normal(rng, rows, 512).to(dtype),
        row_scales(rng, rows),
        "relu",
    ),
}
"""Inputs of some rows in the paper's decoder."""


@pytest.mark.parametrize("beams", [1, 37, 1024], ids=lambda beams: f"beams={beams}")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAPER)
def test_bodies_agree_at_the_papers_shape(name: str, dtype: torch.dtype, beams: int) -> None:
    arguments = there(PAPER[name](np.random.default_rng(beams), dtype, 16 * beams))
    expected = getattr(REFERENCE, name)(*arguments)
    with poisoned_memory():
        got = getattr(CUDA_DECODER, name)(*arguments)
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_a_request_gets_the_same_bits_at_every_place_of_a_batch() -> None:
    order = torch.from_numpy(np.random.default_rng(2).permutation(16)).cuda()
    rows = (131 * order[:, None] + torch.arange(131, device="cuda")).flatten()
    (own,) = there(prefixes(np.random.default_rng(131), torch.bfloat16, 16 * 131))
    moved = replace(own, table=own.table[rows])
    whole = CUDA_DECODER.self_attention(own)
    assert torch.equal(CUDA_DECODER.self_attention(moved), whole[rows])
    (asked,) = there(queries(np.random.default_rng(131), torch.bfloat16, 16 * 131))
    assert asked.row_scale is not None
    elsewhere = replace(
        asked,
        queries=asked.queries[rows],
        keys=asked.keys[order],
        values=asked.values[order],
        key_mask=asked.key_mask[order],
        row_scale=asked.row_scale[rows],
    )
    found = CUDA_DECODER.cross_attention(asked)
    assert torch.equal(CUDA_DECODER.cross_attention(elsewhere), found[rows])


CAPTURED = {
    **{name: (getattr(CUDA_DECODER, name), CASES[name][0]) for name in (*TRITON, "select_beams")},
    **{name: (on_copies(CUDA_ENCODER, name), cases[0]) for name, cases in ENCODER_CASES.items()},
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_operation_reads_its_inputs_at_each_replay(name: str) -> None:
    operation, case = CAPTURED[name]
    arguments = there(case.arguments(np.random.default_rng(5), torch.float32))
    _, first = next(named_tensors(arguments))
    fresh = first.clone()

    def run() -> list[Tensor]:
        results = operation(*map_tensors(arguments, torch.clone))
        return [tensor for _, tensor in named_tensors(results)]

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    first.copy_(fresh.roll(1, dims=0))
    graph.replay()
    torch.testing.assert_close(out, run(), rtol=0, atol=0, equal_nan=True)
