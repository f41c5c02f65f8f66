"""The table of operations: what is chosen for a device, and what is refused."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch

from configs.errors import DeviceError
from kernels import REFERENCE, Ops, load_ops
from kernels.admit_children_cpu import admit_children_cpu


def test_the_cpu_takes_native_admission_and_the_reference_for_the_rest() -> None:
    assert load_ops(torch.device("cpu")) == replace(REFERENCE, admit_children=admit_children_cpu)


@pytest.mark.parametrize("device", ["cuda:0", "meta"])
def test_a_device_without_operations_is_refused_by_name(device: str) -> None:
    with pytest.raises(DeviceError, match=f"^device {device}: this version has no .*; use device"):
        load_ops(torch.device(device))


def test_an_engine_is_a_table_that_nobody_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        REFERENCE.rearrange = REFERENCE.rearrange  # type: ignore[misc]
    assert all(callable(getattr(REFERENCE, field.name)) for field in fields(Ops))
