"""The table of operations: the choice for a device, and what is refused."""

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch

from grace.configs.errors import DeviceError, NativeError
from grace.kernels import REFERENCE, Ops, load_ops
from grace.kernels.decode.admit_children_cpu import admit_children_cpu
from grace.native.loader import load_cuda_library
from support.command import run_python


def test_the_cpu_takes_native_admission_and_the_reference_for_the_rest() -> None:
    assert load_ops(torch.device("cpu")) == replace(REFERENCE, admit_children=admit_children_cpu)


def test_a_device_without_operations_is_refused_by_name() -> None:
    with pytest.raises(DeviceError, match=r"^device meta: this version has no .*; use device cpu"):
        load_ops(torch.device("meta"))


def test_a_gpu_that_torch_does_not_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"^device cuda:0: torch finds no GPU .*; use device cpu"):
        load_ops(torch.device("cuda:0"))


@pytest.mark.parametrize("capability", [(7, 5), (6, 1)], ids=str)
def test_a_gpu_older_than_the_kernels_is_refused_before_any_runs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(DeviceError) as refused:
        load_ops(torch.device("cuda:0"))
    assert str(refused.value) == (
        f"device cuda:0: Tesla T4 has compute capability {capability[0]}.{capability[1]}, the "
        "kernels need 8.0 or more; use another GPU, or device cpu"
    )


@pytest.mark.subprocess
def test_a_cpu_start_loads_no_triton_and_a_gpu_without_it_names_what_to_install() -> None:
    done = run_python(
        "import sys, torch, grace.model.definition.t5_encoder\n"
        "from grace.kernels import load_encoder_ops, load_ops\n"
        "load_ops(torch.device('cpu')), load_encoder_ops(torch.device('cpu'))\n"
        "print([name for name in sys.modules if name.startswith('triton')])\n"
        "sys.modules['triton'] = None\n"
        "for load in (load_ops, load_encoder_ops):\n"
        "    try:\n"
        "        load(torch.device('cuda'))\n"
        "    except Exception as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
    )
    refused = (
        "DeviceError: device cuda: its operations need Triton: pip install 'grace-serving[gpu]'\n"
    )
    assert done.stdout == "[]\n" + 2 * refused, done.stderr


def test_a_missing_library_of_kernels_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRACE_CUDA_LIBRARY", str(tmp_path / "none.so"))
    load_cuda_library.cache_clear()
    with pytest.raises(
        NativeError, match=r"none\.so: .* is missing: run `python -m grace\.native\.build --cuda`$"
    ):
        load_cuda_library()


def test_a_table_of_operations_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        REFERENCE.rearrange = REFERENCE.rearrange  # type: ignore[misc]
    assert all(callable(getattr(REFERENCE, field.name)) for field in fields(Ops))
