"""Paged self-attention against its formula over lists, and the rearrangement of its block table."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import NO_BLOCK
from grace.kernels.decode.self_attention import rearrange_reference, self_attention_reference
from support.op_cases import attention_pool, normal, row_scales


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plain(
    pool: Tensor, table: Tensor, step: int, bias: Tensor, scale: float, row_scale: Tensor | None
) -> Tensor:
    blocks: list[Any] = pool.tolist()
    factors = [1.0] * len(pool) if row_scale is None else row_scale.tolist()
    rows = []
    for prefix in table[:, : step + 1].tolist():
        row: list[float] = []
        for head in range(pool.shape[2]):
            q, k, v = (
                [[factors[b] * x for x in blocks[b][kind][head]] for b in prefix]
                for kind in range(3)
            )
            weights = [
                math.exp(scale * dot(q[step], k[j]) + float(bias[head, step - j]))
                for j in range(step + 1)
            ]
            row += [dot(weights, list(column)) / sum(weights) for column in zip(*v, strict=True)]
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("step", range(4), ids=lambda step: f"step={step}")
def test_a_row_attends_to_its_own_prefix(step: int, scaled: bool) -> None:
    rng = np.random.default_rng(step)
    pool, table = attention_pool(rng, rows=11, length=4, step=step, heads=3, d_head=5)
    bias = normal(rng, 3, 4)
    factors = row_scales(rng, len(pool)) if scaled else None
    got = self_attention_reference(pool, table, step, bias, 0.7, factors)
    torch.testing.assert_close(got, plain(pool, table, step, bias, 0.7, factors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    pool, table = attention_pool(rng, rows=7, length=3, step=2, heads=2, d_head=8)
    low, bias = pool.to(dtype), normal(rng, 2, 3)
    got = self_attention_reference(low, table, 2, bias, 1.0)
    assert torch.equal(got, self_attention_reference(low.float(), table, 2, bias, 1.0).to(dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": torch.zeros(9, 2, 2, 3)}, r"pool must be \[blocks, 3, heads, d_head\], got \[9"),
        ({"table": torch.zeros(3, dtype=torch.int32)}, r"table must be \[rows, sid_length\], got"),
        ({"table": torch.zeros(5, 4)}, "table must be int32, got float32"),
        ({"bias": torch.zeros(2, 3)}, r"bias must be \[heads, sid_length\] = \[2, 4\], got \[2, 3"),
        ({"row_scale": torch.ones(5)}, r"row_scale must be \[blocks\] = \[9\], got \[5\]"),
        ({"step": 4}, r"step must be 0\.\.3, got 4"),
        ({"step": 2}, rf"table\[0, 2\] is {NO_BLOCK}: not a block 0\.\.8"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    table = torch.zeros(5, 4, dtype=torch.int32)
    table[:, 2:] = NO_BLOCK
    arguments: dict[str, Any] = {"pool": torch.zeros(9, 3, 2, 3), "table": table, "step": 1}
    arguments |= {"bias": torch.zeros(2, 4), "scale": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        self_attention_reference(**arguments)


@pytest.mark.parametrize("heads", [3, 16, 20])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_request_gets_the_same_bits_at_every_row(heads: int, threads: int) -> None:
    """Five equal requests of 37 rows, each with own blocks."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(heads)
        pool = torch.randn(148, 3, heads, 8, generator=generator).repeat(5, 1, 1, 1)
        table = torch.randint(148, (37, 4), generator=generator)
        tables = torch.cat([table + 148 * request for request in range(5)]).int()
        bias = torch.randn(heads, 4, generator=generator)
        found = self_attention_reference(pool, tables, 3, bias, 0.3).view(5, -1)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(request, found[0]) for request in found)


@pytest.mark.parametrize("step", range(4), ids=lambda step: f"step={step}")
def test_a_new_row_has_its_parents_blocks_up_to_the_step(step: int) -> None:
    rng = np.random.default_rng(step)
    table = torch.from_numpy(rng.integers(1000, size=(33, 4), dtype=np.int32))
    parents = torch.from_numpy(rng.integers(33, size=(3, 7), dtype=np.int32))
    old = table.tolist()
    expected = [
        [old[parent][j] if j <= step else NO_BLOCK for j in range(4)]
        for request in parents.tolist()
        for parent in request
    ]
    got = rearrange_reference(table, parents, step)
    assert got.tolist() == expected
    assert got.dtype == torch.int32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": torch.zeros(4, dtype=torch.int32)}, r"table must be \[rows, sid_length\], got"),
        ({"parents": torch.zeros(4, dtype=torch.int32)}, r"parents must be \[requests, beams\], g"),
        ({"parents": torch.zeros(1, 4)}, "parents must be int32, got float32"),
        ({"parents": torch.tensor([[0, 5]]).int()}, r"parents\[0, 1\] is 5: not a row 0\.\.4"),
        ({"parents": torch.tensor([[0], [-1]]).int()}, r"parents\[1, 0\] is -1: not a row"),
        ({"step": 3}, r"step must be 0\.\.2, got 3"),
    ],
)
def test_a_rearrangement_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"table": torch.zeros(5, 3, dtype=torch.int32), "step": 1}
    arguments["parents"] = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        rearrange_reference(**{**arguments, **change})
