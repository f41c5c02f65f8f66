"""The Triton bodies on a GPU, at the paper's shapes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from grace.kernels import REFERENCE
from grace.kernels.decode.cross_attention import BeamQueries
from grace.kernels.decode.self_attention import PagedPrefixes
from grace.model.definition.inputs import Value, map_tensors
from support.op_cases import normal, row_scales

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_DECODER
from support.agreement import DTYPES, TOLERANCE, poisoned_memory

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
