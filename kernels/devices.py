"""The devices that GRACE computes on, and the one line for a device that is not there.

torch's own answer is a traceback, which differs with its build, the driver and the first call.
"""

import torch

from grace.configs.errors import DeviceError


def device_named(name: str | None, option: str = "device", instead: str = "cpu") -> torch.device:
    """Return the device that an option names; without a name, the GPU if there is one.

    `instead` is what the user may name on a machine without a GPU.
    """
    if name is None:
        return torch.device("cuda" if _gpus() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) != name:  # to torch, cuda:256 is cuda:0
        raise _unknown(name, option, instead)
    require_device(device, option, instead)
    return device


def require_device(device: torch.device, option: str = "device", instead: str = "cpu") -> None:
    """Refuse a device that this machine does not have, or that GRACE does not compute on."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise _unknown(str(device), option, instead)
    gpus = _gpus()
    if (device.index or 0) >= gpus:
        raise DeviceError(
            f"{option} {device}: torch {torch.__version__} finds {gpus} GPUs (a build without "
            f"CUDA, or CUDA_VISIBLE_DEVICES, may hide others); use one that it finds, or {instead}"
        )


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _unknown(name: str, option: str, instead: str) -> DeviceError:
    return DeviceError(
        f"{option} {name!r}: no device that GRACE computes on; use cuda:0, or {instead}"
    )
