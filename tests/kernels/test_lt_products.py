"""Products by chosen algorithms of cuBLAS: the same numbers, in a graph too, on their GPU."""

import pytest
import torch
from torch import Tensor

from grace.kernels.products.lt_products import LtProducts
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory

GPU = torch.device("cuda", 0)
CHOSEN = ((6144, 2048, False), (2048, 512, True))


@pytest.fixture(scope="module")
def products() -> LtProducts:
    if not LtProducts.fit(GPU, torch.bfloat16):
        pytest.skip("the algorithms were chosen for another GPU")
    return LtProducts(GPU)


def operands(
    rows: int, outs: int, inner: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(GPU).manual_seed(rows)
    x, weight, residual = (
        torch.randn(shape, generator=generator, device=GPU).to(dtype)
        for shape in ((rows, inner), (outs, inner), (rows, outs))
    )
    return x, weight * inner**-0.5, residual


def expected(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    written = x.float() @ weight.float().t()
    return written if residual is None else written + residual.float()


def run(products: LtProducts, x: Tensor, weight: Tensor, residual: Tensor, *, adds: bool) -> Tensor:
    out = residual.clone() if adds else torch.full_like(residual, torch.nan)
    if adds:
        products.add(out, x, weight)
    else:
        products.into(x, weight, out)
    return out


def test_no_algorithm_is_chosen_without_such_a_gpu() -> None:
    assert not LtProducts.fit(torch.device("cpu"), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [4096, 4099, 8192, 16384])
@pytest.mark.parametrize(("outs", "inner", "adds"), CHOSEN)
def test_the_chosen_algorithms_agree_with_the_definition(
    products: LtProducts, outs: int, inner: int, adds: bool, rows: int, dtype: torch.dtype
) -> None:
    if rows >= 8192 and dtype is torch.bfloat16:  # as in the paper's decoder
        assert products.chosen(rows, outs, inner, dtype, adds)
    x, weight, residual = operands(rows, outs, inner, dtype)
    got = run(products, x, weight, residual, adds=adds)
    definition = expected(x, weight, residual if adds else None)
    torch.testing.assert_close(got.float(), definition, rtol=2e-2, atol=2e-2)
    assert torch.equal(got, run(products, x, weight, residual, adds=adds))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "outs", "inner", "adds"),
    [
        (63, 6144, 2048, False),
        (4099, 2048, 2048, True),
        (5, 33, 24, True),
        (8192, 512, 2048, False),
    ],
)
def test_torch_computes_the_other_products(
    products: LtProducts, rows: int, outs: int, inner: int, adds: bool
) -> None:
    assert not products.chosen(rows, outs, inner, torch.bfloat16, adds)
    x, weight, residual = operands(rows, outs, inner)
    got = run(products, x, weight, residual, adds=adds)
    definition = expected(x, weight, residual if adds else None)
    torch.testing.assert_close(got.float(), definition, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize(("outs", "inner", "adds"), CHOSEN)
def test_rows_at_any_address_are_multiplied(
    products: LtProducts, outs: int, inner: int, adds: bool
) -> None:
    x, weight, residual = operands(4099, outs, inner)
    moved = torch.empty(x.numel() + 1, dtype=x.dtype, device=GPU)[1:].view_as(x).copy_(x)
    got = run(products, moved, weight, residual, adds=adds)
    definition = expected(x, weight, residual if adds else None)
    torch.testing.assert_close(got.float(), definition, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize(("outs", "inner", "adds"), CHOSEN)
def test_a_graph_replays_the_products_on_new_rows(
    products: LtProducts, outs: int, inner: int, adds: bool
) -> None:
    x, weight, residual = operands(8192, outs, inner)
    call = GraphedCall(lambda: run(products, x, weight, residual, adds=adds), GraphMemory(GPU))
    x.copy_(x.roll(7, dims=0))
    call.replay()
    assert torch.equal(call.result, run(products, x, weight, residual, adds=adds))
