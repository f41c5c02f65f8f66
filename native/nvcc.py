"""Where NVIDIA's compiler is, and how it compiles the GPU kernels."""

import os
import shlex
import shutil
from pathlib import Path
from sysconfig import get_path

from grace.configs.errors import NativeError

LEAST_CAPABILITY = (8, 0)
"""The least compute capability of a GPU: Ampere's, the oldest that the portable code supports."""

NVCC_FLAGS = (
    *("-std=c++17", "-O3", "-Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden"),
    "-Werror=all-warnings",
    # Code for Hopper, and portable code that another GPU's driver compiles at its first launch.
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_80,code=compute_80",
)


def compiler_of_variable(variable: str) -> tuple[str, ...] | None:
    """Return the command in an environment variable, or None if the variable is not set."""
    chosen = os.environ.get(variable)
    if not chosen:
        return None
    words = tuple(shlex.split(chosen))
    if shutil.which(words[0]):
        return words
    raise NativeError(
        f"{variable}={chosen}: no such compiler; unset {variable} or name an installed one"
    )


def find_nvcc() -> tuple[str, ...]:
    """Return the command of NVCC, or the first nvcc in PATH, CUDA_HOME or this environment."""
    if chosen := compiler_of_variable("NVCC"):
        return chosen
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
