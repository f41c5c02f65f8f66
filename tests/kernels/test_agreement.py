"""Every implementation of every operation agrees with the reference in every case.

The test walks the fields of Ops: a new operation fails here until it has cases.
Integers are equal; floats differ by no more than their type's tolerance.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import REFERENCE, Candidates, Ops, load_ops
from support.op_cases import CASES, OpCase, mapped

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

NAMES = [field.name for field in fields(Ops)]
CALLS = [
    pytest.param(name, case, id=f"{name}-{case.name}")
    for name in NAMES
    for case in CASES.get(name, ())
]


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """New memory is filled with NaN and the largest integers: what is not written is visible."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_agree(got: Any, expected: Any, path: str) -> None:
    if expected is None:
        assert got is None, path
        return
    if isinstance(expected, Candidates) and isinstance(got, Candidates):
        got, expected = got.packed(), expected.packed()
    if is_dataclass(expected):
        assert type(got) is type(expected)
        for field in fields(expected):
            one, other = getattr(got, field.name), getattr(expected, field.name)
            assert_agree(one, other, f"{path}.{field.name}")
        return
    assert isinstance(got, Tensor), path
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), path
    if expected.is_floating_point():
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=path)
    else:
        assert torch.equal(got, expected), path


def test_every_operation_has_cases() -> None:
    assert list(CASES) == NAMES
    assert all(CASES.values())


def tensors_of(arguments: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(arguments, note)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "case"), CALLS)
def test_implementations_agree_and_leave_their_inputs_as_they_are(
    name: str, case: OpCase, device: str
) -> None:
    arguments = case.arguments(np.random.default_rng(7))
    before = mapped(arguments, Tensor.clone)
    own = mapped(arguments, lambda tensor: tensor.to(device, copy=True))
    expected = getattr(REFERENCE, name)(*arguments)
    got = getattr(load_ops(torch.device(device)), name)(*own)
    assert_agree(mapped(got, Tensor.cpu), expected, name)
    for now in (arguments, mapped(own, Tensor.cpu)):
        torch.testing.assert_close(
            tensors_of(now), tensors_of(before), rtol=0, atol=0, equal_nan=True
        )
