"""Which kernels are launched early: those of small decoders, on a GPU that can."""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels import early_launch as module
from grace.kernels.early_launch import early_launch
from support.pretended_gpus import pretend_gpus

GPU = torch.device("cuda", 0)
LATE = {"early": False}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    module._possible.cache_clear()
    yield
    module._possible.cache_clear()


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
def test_a_gpu_launches_early_from_compute_capability_9_on(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert early_launch(GPU)["early"] is (capability >= (9, 0))
    assert early_launch(GPU, rows=2048) == early_launch(GPU)
    assert early_launch(GPU, rows=2049) == LATE


def test_a_cpu_launches_nothing_early() -> None:
    assert early_launch(torch.device("cpu")) == LATE
