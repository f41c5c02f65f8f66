"""Where NVIDIA's compiler is, and how it compiles the GPU kernels."""

import os
import shlex
import shutil
from pathlib import Path
from sysconfig import get_path

from grace.configs.errors import NativeError

__all__ = ["LEAST_CAPABILITY", "NVCC_FLAGS", "NVCC_LINK_FLAGS", "find_nvcc"]

LEAST_CAPABILITY = (8, 0)
"""The least compute capability of a GPU: Ampere's, the oldest that the portable code supports."""

# Code for Hopper, and portable code that the driver of another GPU compiles at its first launch.
_GPUS = (
    "-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_80,code=compute_80",
)  # fmt: skip
NVCC_FLAGS = (
    "-std=c++17", "-O3", "-Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden",
    "-Werror=all-warnings", *_GPUS,
)  # fmt: skip
NVCC_LINK_FLAGS = ("-cudart=static",)  # independent of the CUDA libraries that torch installs


def find_nvcc() -> tuple[str, ...]:
    """Return the command of NVCC, or the first nvcc in PATH, CUDA_HOME or this environment."""
    chosen = os.environ.get("NVCC")
    if chosen:
        words = tuple(shlex.split(chosen))
        if shutil.which(words[0]):
            return words
        raise NativeError(f"NVCC={chosen}: no such compiler; unset NVCC or name an installed one")
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    wheels = sorted(Path(get_path("purelib")).glob("nvidia/cu*/bin/nvcc"), reverse=True)
    for candidate in ("nvcc", str(home / "bin" / "nvcc"), *map(str, wheels)):
        found = shutil.which(candidate)
        if found:
            return (found,)
    raise NativeError(
        "no nvcc found: install the CUDA toolkit, or pip install nvidia-cuda-nvcc, "
        "or set NVCC or CUDA_HOME"
    )
