"""A device that is not there: one line, the same from every function and command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from grace.configs.errors import DeviceError
from grace.kernels import device_named, require_device
from support.command import run_python
from support.in_process import invoke_grace
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
from grace.kernels.products.lt_products import LtProducts
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.side_stream import SideStream
from grace.server.scheduling.streams import streams_for

device, fault, faults = torch.device("cuda:0"), None, {}
uses = {
    "name": lambda: device_named("cuda:0"),
    "decoder": lambda: load_ops(device),
    "encoder": lambda: load_encoder_ops(device),
    "features": lambda: load_feature_ops(device),
    "fp8": lambda: require_fp8(device),
    "fp8 products": lambda: load_rounded_ops(device),
    "chosen products": lambda: LtProducts(device),
    "whether they fit": lambda: LtProducts.fit(device, torch.bfloat16),
    "index": lambda: DecodeIndex.of(None, device),
    "checkpoint": lambda: load_checkpoint(Path("none"), device),
    "graphs": lambda: GraphMemory(device),
    "side stream": lambda: SideStream(device),
    "stages' streams": lambda: streams_for(device),
}
try:
    from grace.kernels.early_launch import early_launch
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


@pytest.mark.subprocess
def test_every_use_of_a_gpu_that_is_not_there_is_refused_by_the_same_line() -> None:
    done = run_python(USES, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fault = "torch finds no GPU with CUDA_VISIBLE_DEVICES=''; change it, or use cpu"
    if torch.version.cuda is None:
        fault = (
            f"torch {torch.__version__} is a build without CUDA; install one with CUDA, or use cpu"
        )
    assert found["faults"] == dict.fromkeys(found["faults"], f"DeviceError: device cuda:0: {fault}")
    assert found["default"] == "cpu"


@pytest.mark.parametrize(
    ("gpus", "listed"), [(1, "cuda:0; use it"), (3, "cuda:0 to cuda:2; use one of them")]
)
def test_a_number_that_no_gpu_has_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, gpus: int, listed: str
) -> None:
    pretend_gpus(monkeypatch, gpus)
    for index in range(gpus):
        require_device(torch.device("cuda", index))
    assert device_named("cuda") == device_named(None) == torch.device("cuda")
    with pytest.raises(DeviceError) as refused:
        device_named(f"cuda:{gpus}", "--device", instead="cpu with --tiny")
    assert str(refused.value) == (
        f"--device cuda:{gpus}: torch finds only {listed}, or cpu with --tiny"
    )


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
    assert str(refused.value) == (
        f"device {name!r}: no device that GRACE computes on; use cuda:0, or cpu"
    )
    assert device_named("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("train --data . --out out", "cpu"),
        ("evaluate --data . --checkpoint .", "cpu"),
        ("sids --embeddings items.npy --out out", "cpu"),
        ("bench eligibility", "cpu"),
        ("bench gtm", "cpu with --tiny"),
    ],
)
def test_a_command_refuses_a_gpu_that_is_not_there_in_one_line(
    command: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("items.npy", np.ones((3, 2), np.float32))
    done = invoke_grace(*command.split(), "--device", "cuda:77")
    assert done.stderr.startswith("error: --device cuda:77: torch "), done.stderr
    assert done.stderr.endswith(f" {instead}\n")
    assert done.stderr.count("\n") == 1
    assert done.exit_code == 1
