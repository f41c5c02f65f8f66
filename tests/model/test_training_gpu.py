"""Training and evaluation on a GPU. `make test-gpu` runs them on a machine that has one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grace.kernels import device_named
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.train.run import train_model
from support.builds import silent
from support.in_process import reported
from support.training import small_run

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def test_a_training_on_the_gpu_lowers_the_loss_and_writes_what_the_cpu_reads(
    training_folder: Path, tmp_path: Path
) -> None:
    assert device_named(None) == CUDA
    run = small_run(training_folder, tmp_path / "whole", steps=60, device="cuda")
    whole = train_model(run, silent)
    assert whole.final_loss < 0.6 * whole.losses[0]

    again = train_model(replace(run, out=tmp_path / "again"), silent)
    assert again.checkpoint == whole.checkpoint
    on_cpu = load_checkpoint(tmp_path / "whole").state_dict()
    on_gpu = load_checkpoint(tmp_path / "again", CUDA).state_dict()
    assert all(torch.equal(weight, on_gpu[name].cpu()) for name, weight in on_cpu.items())


def test_an_evaluation_on_the_gpu_finds_what_the_cpu_finds(
    training_folder: Path, folder_with_users: Path, tmp_path: Path
) -> None:
    """Another order of addition may swap near-ties of a user or two among some 9."""
    out = tmp_path / "checkpoint"
    train_model(small_run(training_folder, out, steps=60, device="cuda"), silent)
    found = {}
    for device in ("cpu", "cuda"):
        given = ("--checkpoint", out, "--data", folder_with_users, "--device", device)
        found[device] = reported("evaluate", *given)
    for kind in ("without_targeting", "targeted"):
        cpu, cuda = found["cpu"][kind], found["cuda"][kind]
        if kind == "targeted":
            assert cpu["measured"] == cuda["measured"] > 0
            cpu, cuda = cpu["with_targeting"], cuda["with_targeting"]
        assert cuda["popularity"] == cpu["popularity"]
        for k, share in cpu["model"]["recall"].items():
            assert cuda["model"]["recall"][k] == pytest.approx(share, abs=0.25)
