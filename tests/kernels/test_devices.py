"""A device that is not there or cannot compute: one line, the same from functions and commands."""

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grace.configs.errors import DeviceError
from grace.configs.extras import install_command
from grace.kernels import device_named, load_ops, require_device, require_fp8
from grace.kernels.devices import PIECE_BYTES, Limits, limits_of, staged_copy
from support.command import run_python
from support.pretended_gpus import pretend_gpus

USES = """
import json
from pathlib import Path
import torch
from grace.configs.errors import DeviceError
from grace.kernels import (
    DecodeIndex, device_named, load_encoder_ops, load_feature_ops, load_ops, load_rounded_ops,
    require_fp8,
)
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.encoder_decoder.fast_encoder import SideStream
from grace.server.scheduling.streams import streams_for

device, fault, faults = torch.device("cuda:0"), None, {}
uses = {
    "name": lambda: device_named("cuda:0"),
    "decoder": lambda: load_ops(device),
    "encoder": lambda: load_encoder_ops(device),
    "features": lambda: load_feature_ops(device),
    "fp8": lambda: require_fp8(device),
    "fp8 products": lambda: load_rounded_ops(device),
    "index": lambda: DecodeIndex.of(None, device),
    "checkpoint": lambda: load_checkpoint(Path("none"), device),
    "graphs": lambda: GraphMemory(device),
    "side stream": lambda: SideStream(device),
    "stages' streams": lambda: streams_for(device),
}
try:
    from grace.kernels.triton_parts import early_launch
    uses["early launch"] = lambda: early_launch(device)
except ModuleNotFoundError:
    pass  # the extra `gpu` exists on Linux alone
for name, use in uses.items():
    try:
        faults[name] = repr(use())
    except Exception as error:
        faults[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"default": str(device_named(None)), "faults": faults}))
"""


def fault_of(device: str, gpus: int, instead: str) -> str:
    return (
        f"{device}: torch {torch.__version__} finds {gpus} GPUs (a build without CUDA, or "
        f"CUDA_VISIBLE_DEVICES, may hide others); use one that it finds, or {instead}"
    )


@pytest.mark.subprocess
def test_every_use_of_a_gpu_that_is_not_there_is_refused_by_the_same_line() -> None:
    done = run_python(USES, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fault = f"DeviceError: {fault_of('device cuda:0', 0, 'cpu')}"
    assert found["faults"] == dict.fromkeys(found["faults"], fault)
    assert found["default"] == "cpu"


def test_a_number_that_no_gpu_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 3)
    for index in range(3):
        require_device(torch.device("cuda", index))
    assert device_named("cuda") == device_named(None) == torch.device("cuda")
    with pytest.raises(DeviceError) as refused:
        device_named("cuda:3", "--device", instead="cpu with --tiny")
    assert str(refused.value) == fault_of("--device cuda:3", 3, "cpu with --tiny")


# cuda:256 is cuda:0 to torch, which reads an index as 8 bits.
@pytest.mark.parametrize(
    "name", ["", "gpu", "CPU", "cuda:x", "cuda:01", "cuda:256", "cpu:nine", "meta", "mps"]
)
def test_a_device_that_grace_does_not_compute_on_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch)
    with pytest.raises(DeviceError) as refused:
        device_named(name)
    fault = f"device {name!r}: no device that GRACE computes on; use cuda:0, or cpu"
    assert str(refused.value) == fault
    assert device_named("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("use", "name", "capability", "fault"),
    [
        (load_ops, "Tesla T4", (7, 5), "capability 7.5, the kernels need 8.0 or more; use another"),
        (require_fp8, "NVIDIA L4", (8, 9), r"\(H100, H200\), NVIDIA L4 has 8.9; use bf16"),
    ],
    ids=["kernels", "fp8"],
)
def test_a_gpu_that_lacks_instructions_is_refused_by_its_name(
    use: Callable[[torch.device], object],
    name: str,
    capability: tuple[int, int],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    with pytest.raises(DeviceError, match=fault) as refused:
        use(torch.device("cuda:0"))
    assert name in str(refused.value)


@pytest.mark.parametrize("major", [8, 9, 10])
def test_a_gpus_limits_are_read_and_from_hopper_on_kernels_of_few_rows_are_launched_early(
    major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from grace.kernels.triton_parts import early_launch

    pretend_gpus(monkeypatch, count=major + 1)
    found = SimpleNamespace(major=major, minor=0, shared_memory_per_multiprocessor=102_400)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    device = torch.device("cuda", major)  # another for each case: the answers are kept
    assert limits_of(device) == Limits((major, 0), 101_376)
    assert early_launch(device, rows=2048)["early"] is (major >= 9)
    assert early_launch(device, rows=2049) == early_launch(torch.device("cpu")) == {"early": False}


@pytest.mark.subprocess
def test_a_cpu_start_loads_no_triton_and_a_gpu_without_it_names_what_to_install() -> None:
    done = run_python(
        "import sys, torch, grace.model.definition.t5_encoder\n"
        "from grace.kernels import load_encoder_ops, load_ops\n"
        "load_ops(torch.device('cpu')), load_encoder_ops(torch.device('cpu'))\n"
        "print([name for name in sys.modules if name.startswith('triton')])\n"
        "sys.modules['triton'] = None\n"
        "torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1\n"
        "for load in (load_ops, load_encoder_ops):\n"
        "    try:\n"
        "        load(torch.device('cuda'))\n"
        "    except Exception as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
    )
    refused = f"DeviceError: device cuda: its operations need Triton: {install_command('gpu')}\n"
    assert done.stdout == "[]\n" + 2 * refused, done.stderr


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 8, 5 * PIECE_BYTES + 24])
def test_arrays_of_any_size_arrive_on_a_device_as_they_are(size: int, device: str) -> None:
    drawn = np.random.default_rng(7).integers(0, 256, size, np.uint8)
    for array in (drawn, drawn[: size // 56 * 56].view(np.int64).reshape(-1, 7)):
        copied = staged_copy(array, torch.device(device))
        assert copied.device == torch.device(device)
        np.testing.assert_array_equal(copied.cpu().numpy(), array)
