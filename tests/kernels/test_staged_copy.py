"""Arrays arrive on the GPU as they are, whatever their size."""

import numpy as np
import pytest
import torch

from grace.kernels.staged_copy import PIECE_BYTES, staged_copy

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize(
    "size", [0, 1, PIECE_BYTES, PIECE_BYTES + 8, 2 * PIECE_BYTES, 5 * PIECE_BYTES + 24]
)
def test_every_byte_is_copied(size: int, dtype: type[np.generic], device: str) -> None:
    drawn = np.random.default_rng(7).integers(0, 256, size, np.uint8)
    array = drawn[: size - size % np.dtype(dtype).itemsize].view(dtype)
    copied = staged_copy(array, torch.device(device))
    assert copied.device == torch.device(device)
    np.testing.assert_array_equal(copied.cpu().numpy(), array)


def test_a_table_keeps_its_rows() -> None:
    table = np.arange(7 * 3, dtype=np.int64).reshape(7, 3)
    np.testing.assert_array_equal(staged_copy(table, torch.device("cpu")).numpy(), table)
