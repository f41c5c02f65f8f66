"""What a GPU's numbers depend on: its name, driver and software; its clock and power meanwhile."""

import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

import pynvml
import torch

from grace.bench.result_file import machine

__all__ = ["Draw", "PowerMeter", "device_text"]

_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Draw:
    """Medians over a measurement; None where there is no GPU, or it is over too soon."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None

    @staticmethod
    def median_of(draws: "Sequence[Draw]") -> "Draw":
        clocks = [each.sm_clock_mhz for each in draws if each.sm_clock_mhz is not None]
        watts = [each.power_w for each in draws if each.power_w is not None]
        if not clocks:
            return Draw()
        return Draw(round(median(clocks)), round(median(watts), 1))


def device_text(device: torch.device) -> str:
    """Such as "NVIDIA H200, driver 580.82, CUDA 13.0, torch 2.11.0, ...; 16 cores of ..."."""
    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type != "cuda":
        return f"{machine()}, {software}"
    pynvml.nvmlInit()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    name = torch.cuda.get_device_name(device)
    return f"{name}, driver {driver}, CUDA {torch.version.cuda}, {software}; {machine()}"


class PowerMeter:
    """Inside `with`, a thread samples the GPU's clock and power; on a CPU it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clocks: list[int] = []
        self._watts: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(self._device).uuid
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            self._stop.set()
            self._thread.join()
            pynvml.nvmlShutdown()

    @property
    def draw(self) -> Draw:
        if not self._clocks:
            return Draw()
        return Draw(round(median(self._clocks)), round(median(self._watts), 1))

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            clock = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            self._clocks.append(clock)
            self._watts.append(pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
