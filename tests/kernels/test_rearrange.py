"""Rearrangement: new rows take their parents' blocks, and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch

from grace.kernels import NO_BLOCK
from grace.kernels.decode.rearrange import rearrange_reference


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
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"table": torch.zeros(5, 3, dtype=torch.int32), "step": 1}
    arguments["parents"] = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        rearrange_reference(**{**arguments, **change})
