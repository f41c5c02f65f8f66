"""Compile for sm_90, without a GPU, the kernel that an operation would launch."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED_MEMORY = 232_448  # bytes that one block of sm_90 may have

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Compiled:
    """The grid of a launch, and the kernel that triton.compile returned for it."""

    grid: tuple[int, ...]
    kernel: Any

    @property
    def ptx(self) -> str:
        return str(self.kernel.asm["ptx"])

    @property
    def shared_memory(self) -> int:
        return int(self.kernel.metadata.shared)

    @property
    def threads(self) -> int:
        return 32 * int(self.kernel.metadata.num_warps)

    @cached_property
    def resources(self) -> dict[str, int]:
        """REG, STACK, LOCAL and others, per thread; a kernel that spills has a stack."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.asm["cubin"])
            file.flush()
            done = subprocess.run(
                [str(triton.knobs.nvidia.cuobjdump.path), "--dump-resource-usage", file.name],
                capture_output=True,
                text=True,
                check=True,
            )
        return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", done.stdout)}

    def count(self, instruction: str) -> int:
        return len(re.findall(instruction, self.ptx))


class _Recorder:
    """A fake kernel that records its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **named: self.launches.append((grid, args, named))


def compiled_launch(body: Callable[..., Tensor], *arguments: Any) -> Compiled:
    """Compile the one kernel that `body` launches for these arguments, of the device `meta`."""
    module = sys.modules[body.__module__]
    kernels = {name: x for name, x in vars(module).items() if isinstance(x, JITFunction)}
    recorders = {name: _Recorder() for name in kernels}
    with pytest.MonkeyPatch.context() as patch:
        for name, recorder in recorders.items():
            patch.setattr(module, name, recorder)
        body(*arguments)
    ((name, recorder),) = [pair for pair in recorders.items() if pair[1].launches]
    ((grid, args, named),) = recorder.launches
    return Compiled(grid, _compile(kernels[name], args, named))


def _compile(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    signature, constants, attributes = {}, {}, {}
    for place, param in enumerate(kernel.params):
        value = values[param.name]
        signature[param.name] = "constexpr" if param.is_constexpr else _type(value)
        if signature[param.name] == "constexpr":
            constants[(place,)] = value
        elif isinstance(value, Tensor) or (
            isinstance(value, int) and value % 16 == 0 and not param.do_not_specialize
        ):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "constexpr" if value is None or value == 1 else "i32"
