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


def operands(rows: int, outs: int, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(GPU).manual_seed(rows)
    x, weight, residual = (
        torch.randn(shape, generator=generator, device=GPU).bfloat16()
        for shape in ((rows, inner), (outs, inner), (rows, outs))
    )
    return x, weight * inner**-0.5, residual


def run(products: LtProducts, x: Tensor, weight: Tensor, residual: Tensor, *, adds: bool) -> Tensor:
    out = residual.clone() if adds else torch.full_like(residual, torch.nan)
    if adds:
        products.add(out, x, weight)
    else:
        products.into(x, weight, out)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "outs", "inner", "adds", "chosen"),
    [
        *((rows, *each, rows >= 8192) for rows in (4096, 4099, 8192, 16384) for each in CHOSEN),
        (63, 6144, 2048, False, False),
        (4099, 2048, 2048, True, False),
        (5, 33, 24, True, False),
        (8192, 512, 2048, False, False),
    ],
)
def test_products_agree_with_the_definition_whoever_computes_them_and_at_any_address(
    products: LtProducts, rows: int, outs: int, inner: int, adds: bool, chosen: bool
) -> None:
    """torch computes what is not chosen, as the paper's decoder has it from 8192 rows on."""
    if chosen or (outs, inner, adds) not in CHOSEN:
        assert products.chosen(rows, outs, inner, adds) == chosen
    x, weight, residual = operands(rows, outs, inner)
    moved = torch.empty(x.numel() + 1, dtype=x.dtype, device=GPU)[1:].view_as(x).copy_(x)
    definition = x.float() @ weight.float().t()
    definition = definition + residual.float() if adds else definition
    for given in (x, moved):
        got = run(products, given, weight, residual, adds=adds)
        torch.testing.assert_close(got.float(), definition, rtol=2e-2, atol=2e-2)
        assert torch.equal(got, run(products, given, weight, residual, adds=adds))


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
