"""A row's result has the same bits wherever in a batch the row is."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.row_stable import gelu, linear, matmul, sigmoid

WIDTHS = [(1, 1), (3, 7), (17, 63), (24, 8), (63, 17), (64, 48), (111, 333), (128, 192)]


@pytest.fixture(autouse=True, params=[1, 3], ids=lambda n: f"threads={n}")
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same_everywhere(batch: Tensor) -> None:
    assert torch.equal(batch, batch[:1].expand_as(batch))


@pytest.mark.parametrize(("wide", "outputs"), WIDTHS)
def test_a_projected_row_is_the_same_at_every_place(wide: int, outputs: int) -> None:
    weight, bias = random(outputs, wide), random(outputs)
    for batch in (2, 3, 5, 7, 9, 16):
        for rows in (1, 2, 3, 5, 13, 31, 63):
            x = random(1, rows, wide).expand(batch, -1, -1).contiguous()
            for added in (None, bias):
                projected = linear(x, weight, added)
                assert_same_everywhere(projected)
                torch.testing.assert_close(projected, functional.linear(x, weight, added))


@pytest.mark.parametrize(("inner", "outputs"), WIDTHS)
def test_a_product_is_the_same_for_every_request(inner: int, outputs: int) -> None:
    for batch in (2, 3, 5, 9):
        for rows in (1, 3, 13, 63):
            a = random(1, 2, rows, inner).expand(batch, -1, -1, -1)
            b = random(1, 2, inner, outputs).expand(batch, -1, -1, -1)
            assert_same_everywhere(matmul(a.contiguous(), b.contiguous()))
            turned = b.transpose(2, 3).contiguous().transpose(2, 3)
            assert_same_everywhere(matmul(a.contiguous(), turned))
            torch.testing.assert_close(matmul(a, b), a @ b)


@pytest.mark.parametrize("activation", [gelu, sigmoid])
def test_an_activation_is_the_same_at_every_place(activation: Callable[[Tensor], Tensor]) -> None:
    for value in random(7):
        for count in (2, 15, 17, 33, 63, 111, 40_001):
            assert_same_everywhere(activation(value.expand(count).contiguous()))


def test_the_activations_agree_with_torch() -> None:
    x = 3 * random(1111)
    torch.testing.assert_close(gelu(x), functional.gelu(x, approximate="tanh"))
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x))
