"""Compares snapshots array by array."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def assert_same_arrays(got: Any, expected: Any, path: str = "snapshot") -> None:
    """Require arrays of the same dtype, shape and bytes, also in dataclasses, tuples and mappings.

    `facts` may differ.
    """
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, f"{path}: {got.dtype}, expected {expected.dtype}"
        assert got.shape == expected.shape, f"{path}: {got.shape}, expected {expected.shape}"
        same = got.tobytes() == expected.tobytes()
        assert same, f"{path}: differs:\n{got}\nexpected\n{expected}"
    elif is_dataclass(expected):
        for item in fields(expected):
            if item.name != "facts":
                inner = f"{path}.{item.name}"
                assert_same_arrays(getattr(got, item.name), getattr(expected, item.name), inner)
    elif isinstance(expected, Mapping):
        assert got.keys() == expected.keys(), path
        for key, value in expected.items():
            assert_same_arrays(got[key], value, f"{path}[{key!r}]")
    elif isinstance(expected, tuple):
        assert len(got) == len(expected), path
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same_arrays(one, other, f"{path}[{i}]")
    else:
        assert got == expected, f"{path}: {got!r}, expected {expected!r}"
