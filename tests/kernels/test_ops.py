"""The table of operations: the choice for a device, and what is refused."""

import pytest
import torch

from grace.configs.errors import DeviceError
from grace.configs.extras import install_command
from grace.kernels import load_ops
from support.command import run_python
from support.pretended_gpus import pretend_gpus


def test_a_device_without_operations_is_refused_by_name() -> None:
    with pytest.raises(DeviceError, match=r"^device 'meta': no device that GRACE computes on; "):
        load_ops(torch.device("meta"))


def test_a_gpu_older_than_the_kernels_is_refused_before_any_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(DeviceError) as refused:
        load_ops(torch.device("cuda:0"))
    assert str(refused.value) == (
        "device cuda:0: Tesla T4 has compute capability 7.5, the "
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
        "torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1\n"
        "for load in (load_ops, load_encoder_ops):\n"
        "    try:\n"
        "        load(torch.device('cuda'))\n"
        "    except Exception as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
    )
    refused = f"DeviceError: device cuda: its operations need Triton: {install_command('gpu')}\n"
    assert done.stdout == "[]\n" + 2 * refused, done.stderr
