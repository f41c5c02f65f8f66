"""model.safetensors: tensors by name. Errors name every fault, and no code in a file ever runs."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from grace.configs.errors import CheckpointError
from grace.configs.regular_files import closing, open_regular

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The types of stored weights."""

_CODES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, slots=True)
class Weights:
    """An open file, from which tensors are read one by one."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    _file: Any

    def read(
        self, name: str, dtype: torch.dtype | None = None, computed_in: torch.dtype | None = None
    ) -> Tensor:
        """Read a tensor to the CPU, in its stored type or in `dtype`. Refuse numbers that are not
        finite, or not in the type `computed_in`."""
        try:
            stored: Tensor = self._file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise self.fault(f"cannot be read: {error}") from None
        require_finite(self.path, name, stored)
        dtype = dtype or stored.dtype
        if not _is_finite(stored, computed_in or dtype):
            count = int((~stored.to(computed_in or dtype).isfinite()).sum())
            raise self.fault(
                f"tensor {name!r} has {count} numbers beyond the range of "
                f"{str(computed_in or dtype).removeprefix('torch.')}; use precision fp32"
            )
        # A copy: the library returns a memory map, which is invalid when the file is truncated.
        return torch.empty(stored.shape, dtype=dtype).copy_(stored)

    def require_shape(self, name: str, shape: tuple[int, ...], source: str) -> None:
        """Refuse a tensor that is missing, or of another shape than the file `source` asks for."""
        found = self.shapes.get(name)
        if found is None:
            raise self.fault(f"missing tensor {name!r} {list(shape)}, which {source} asks for")
        if found != shape:
            fault = f"tensor {name!r} must be {list(shape)} by {source}, got {list(found)}"
            raise self.fault(fault)

    def fault(self, text: str) -> CheckpointError:
        return CheckpointError(str(self.path), text)


@contextmanager
def open_weights(path: Path) -> Iterator[Weights]:
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
    try:
        # The library opens a name. This one is our open file, even if `path` has changed since.
        with closing(descriptor), safe_open(f"/dev/fd/{descriptor}", "pt") as file:
            shapes = {name: _shape(path, file, name) for name in file.keys()}  # noqa: SIM118
            yield Weights(path, shapes, file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            str(path), f"not a whole safetensors file ({error}); copy or write it again"
        ) from None


def require_finite(path: Path, name: str, tensor: Tensor) -> None:
    if not _is_finite(tensor):
        count = int((~tensor.isfinite()).sum())
        raise CheckpointError(
            str(path),
            f"tensor {name!r} has {count} of {tensor.numel()} numbers NaN or infinite; use a "
            "checkpoint from before the training diverged",
        )


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        require_finite(path, name, tensor)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    try:
        save_file(on_cpu, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from None
    path.chmod(mode)  # only the owner may read the library's file, and a server may be another user


def _is_finite(tensor: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Check the extremes, as another type too: they are NaN if any number is, and this is fast."""
    if not tensor.numel():
        return True
    low, high = (extreme.to(dtype or tensor.dtype) for extreme in tensor.aminmax())
    return bool(low.isfinite() and high.isfinite())


def _shape(path: Path, file: Any, name: str) -> tuple[int, ...]:
    tensor = file.get_slice(name)
    code = tensor.get_dtype()
    if code not in _CODES:
        raise CheckpointError(
            str(path),
            f"tensor {name!r} has dtype {code}, expected one of {', '.join(_CODES)}; convert it",
        )
    return tuple(tensor.get_shape())
