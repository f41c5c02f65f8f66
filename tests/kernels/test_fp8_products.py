"""Products of rows rounded to e4m3: what they compute, on a CPU and on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from grace.kernels import load_rounded_ops
from grace.kernels.products.fp8_products import (
    LARGEST,
    REFERENCE_ROUNDED,
    Addition,
    Order,
    RoundedRows,
    RoundedWeight,
    gated_order,
    ordered,
    round_rows_reference,
    to_e4m3,
)

EPS = 1e-6
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
# rows, outs, inner: whole tiles and parts, and up to 16 steps, which use each stage several times.
SHAPES = (
    *((1, 128, 128), (77, 384, 640), (300, 2048, 512), (4100, 256, 256), (16500, 512, 256)),
    (300, 256, 2048),
)


def normal(rows: int, columns: int, seed: int, device: torch.device = CPU) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn((rows, columns), generator=generator, device=device)


def weight_of(outs: int, inner: int, *, reads: Order, device: torch.device) -> RoundedWeight:
    sizes = torch.linspace(0.1, 3.0, outs, device=device).unsqueeze(1)
    weight = normal(outs, inner, outs + inner, device) * sizes * inner**-0.5
    return RoundedWeight.of(weight, reads=reads)


def test_numbers_beyond_the_largest_become_the_largest_and_nan_stays_nan() -> None:
    x = torch.tensor([[1e9, -1e9, torch.inf, torch.nan, 0.3, 448.0, -449.0, 0.0]])
    expected = [LARGEST, -LARGEST, LARGEST, torch.nan, 0.3125, LARGEST, -LARGEST, 0.0]
    assert torch.equal(to_e4m3(x).float().nan_to_num(7.0), torch.tensor([expected]).nan_to_num(7.0))


def test_ordering_rows_and_a_weights_columns_changes_no_product() -> None:
    rows, weight = to_e4m3(normal(7, 384, 1)), normal(5, 384, 2)
    plain = RoundedWeight.of(weight, reads="plain")
    other = RoundedWeight.of(weight, reads="ordered")
    assert not torch.equal(plain.rounded.float(), other.rounded.float())
    expected = rows.double() @ plain.rounded.double().t()
    torch.testing.assert_close(ordered(rows).double() @ other.rounded.double().t(), expected)
    gated = RoundedWeight.of(weight, reads="gated").rounded.double()
    torch.testing.assert_close(gated_order(rows).double() @ gated.t(), expected)


def test_the_rounded_copy_stays_near_the_rows_over_many_additions() -> None:
    """A row's scale is that of the row before, so it must not drift away from the row's size."""
    rows = normal(33, 256, 3).bfloat16()
    weight = weight_of(256, 128, reads="plain", device=CPU)
    stream = round_rows_reference(rows, EPS)
    for turn in range(6):
        x = to_e4m3(16 * normal(33, 128, 10 + turn))
        added = (x.float() @ weight.rounded.float().t()) * weight.scales
        expected = rows.float() + added
        given = Addition(rows, stream.row_factors, x, weight, None, EPS)
        stream = REFERENCE_ROUNDED.add_product(given)
        torch.testing.assert_close(rows.float(), expected, rtol=2**-8, atol=1e-6)
        factors = torch.rsqrt(expected.square().mean(1) + EPS)
        torch.testing.assert_close(stream.row_factors, factors, rtol=1e-4, atol=0)
        copy = stream.rounded.float() * (stream.rounded_factors).unsqueeze(1)
        normed = ordered_float(expected * factors.unsqueeze(1))
        error = (copy - normed).norm() / normed.norm()
        assert error < 0.04


def test_rows_that_outgrow_their_scale_are_rounded_again() -> None:
    rows, before = grown_rows(CPU)
    others = rows.rounded.float().clone()
    REFERENCE_ROUNDED.round_grown(rows, before)
    own = round_rows_reference(rows.rows, EPS)
    assert_near_e4m3(rows.rounded[::2], own.rounded[::2])
    assert torch.equal(rows.rounded.float()[1::2], others[1::2])
    normed = ordered_float(rows.rows.float() * rows.row_factors.unsqueeze(1))
    copy = rows.rounded.float() * rows.rounded_factors.unsqueeze(1)
    assert (copy - normed).norm() / normed.norm() < 0.04


def grown_rows(device: torch.device) -> tuple[RoundedRows, Tensor]:
    """Rows after an addition, and their factors before it. Every second grew a thousand times."""
    weight = weight_of(256, 128, reads="plain", device=device)
    rows = normal(60, 256, 3, device).bfloat16()
    rows[::2] *= 1e-3
    before = round_rows_reference(rows, EPS).row_factors
    x = to_e4m3(normal(60, 128, 4, device))
    return REFERENCE_ROUNDED.add_product(Addition(rows, before, x, weight, None, EPS)), before


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)])
def test_an_addition_counts_the_numbers_that_it_clips(device: torch.device) -> None:
    """Row 1 alone gets numbers beyond 448. Row 2 gets one just below."""
    weight = RoundedWeight.of(torch.eye(128, device=device), reads="plain")
    rows = torch.ones((300, 128), dtype=torch.bfloat16, device=device)
    x = torch.zeros((300, 128), device=device)
    x[1, :5], x[1, 5], x[2, 0] = 400.0, -400.0, 200.0
    clipped = torch.full((1,), 3, device=device)
    given = Addition(rows, torch.ones(300, device=device), to_e4m3(x), weight, None, EPS, clipped)
    got = load_rounded_ops(device).add_product(given)
    assert int(clipped) == 3 + 6
    assert int((got.rounded.float().abs() == LARGEST).sum()) == 6


def test_a_requests_scale_multiplies_its_rows_alone() -> None:
    weight = weight_of(128, 128, reads="plain", device=CPU)
    x, scales = to_e4m3(normal(6, 128, 4)), torch.tensor([0.5, 3.0])
    rows = torch.zeros((6, 128), dtype=torch.bfloat16)
    REFERENCE_ROUNDED.add_product(Addition(rows, torch.ones(6), x, weight, scales, EPS))
    product = (x.float() @ weight.rounded.float().t()) * weight.scales
    expected = product * torch.tensor([0.5] * 3 + [3.0] * 3).unsqueeze(1)
    torch.testing.assert_close(rows.float(), expected, rtol=2**-8, atol=1e-6)


def ordered_float(x: Tensor) -> Tensor:
    """The order of `ordered`, for rows of floats."""
    return x.view(len(x), -1, 16, 4, 2).transpose(2, 3).reshape(x.shape)


def stream_of(rows: int, d: int, device: torch.device) -> RoundedRows:
    return round_rows_reference(3 * normal(rows, d, rows + d, device).bfloat16(), EPS)


def assert_near_e4m3(got: Tensor, expected: Tensor) -> None:
    """Both were rounded from other sums, so a few may be neighbours.

    Tensor cores add products of e4m3 with some 14 bits. So numbers near 0 differ by more: they are
    small next to the terms that they are sums of.
    """
    of_sums = 5e-3 * expected.float().square().mean().sqrt()
    close = (got.float() - expected.float()).abs() <= 0.13 * expected.float().abs() + of_sums
    assert close.float().mean() > 0.9999
    assert (got.float() == expected.float()).float().mean() > 0.97


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "outs", "inner"), SHAPES)
def test_a_gpu_computes_the_same(rows: int, outs: int, inner: int) -> None:
    ops = load_rounded_ops(GPU)
    stream = stream_of(rows, inner, GPU)
    own = ops.round_rows(stream.rows, EPS)
    assert_near_e4m3(own.rounded, stream.rounded)
    torch.testing.assert_close(own.row_factors, stream.row_factors)

    weight = weight_of(outs, inner, reads="ordered", device=GPU)
    out = torch.full((rows, outs), torch.nan, dtype=torch.bfloat16, device=GPU)
    wanted = out.clone()
    ops.product(stream.rounded, weight, out)
    REFERENCE_ROUNDED.product(stream.rounded, weight, wanted)
    torch.testing.assert_close(out, wanted, rtol=2e-2, atol=5e-2)

    for ffn in ("relu", "gated_silu"):
        wanted = REFERENCE_ROUNDED.hidden(stream, weight, ffn)
        assert_near_e4m3(ops.hidden(stream, weight, ffn), wanted)
    for tokens in (outs, outs - 5):
        sums = ops.log_sums(stream, weight, tokens)
        wanted = REFERENCE_ROUNDED.log_sums(stream, weight, tokens)
        torch.testing.assert_close(sums, wanted, rtol=3e-3, atol=3e-2)

    x = to_e4m3(8 * normal(rows, inner, 8, GPU))
    requests = next(n for n in (7, 4, 1) if rows % n == 0)
    for scales in (None, torch.linspace(0.3, 2.0, requests, device=GPU)):
        mine = 3 * normal(rows, outs, 9, GPU).bfloat16()
        theirs = mine.clone()
        before = round_rows_reference(mine, EPS).row_factors
        counters = torch.zeros(2, 1, dtype=torch.int64, device=GPU)
        given = Addition(mine, before, x, weight, scales, EPS, counters[0])
        got = ops.add_product(given)
        expected = REFERENCE_ROUNDED.add_product(replace(given, rows=theirs, clipped=counters[1]))
        assert counters.sum() == 0
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=1e-1)
        torch.testing.assert_close(got.row_factors, expected.row_factors, rtol=2e-3, atol=0)
        torch.testing.assert_close(got.rounded_factors, expected.rounded_factors, rtol=2e-3, atol=0)
        assert_near_e4m3(got.rounded, expected.rounded)


@pytest.mark.gpu
def test_a_gpu_rounds_the_same_rows_again() -> None:
    got, before = grown_rows(GPU)
    expected, _ = grown_rows(GPU)
    load_rounded_ops(GPU).round_grown(got, before)
    REFERENCE_ROUNDED.round_grown(expected, before)
    assert_near_e4m3(got.rounded, expected.rounded)
    assert torch.equal(got.rounded_factors, expected.rounded_factors)
    assert (got.rounded_factors == 0.5).sum() == 30
