"""A Hugging Face folder: config.json and safetensors weights, sharded or not.

Nothing here needs `transformers`, and no code in a folder ever runs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

from grace.configs.errors import CheckpointError, ConfigError, InputError
from grace.configs.options import declaration
from grace.configs.regular_files import read_regular
from grace.configs.sections import load_section
from grace.model.checkpoints.folder import PICKLE_REMEDY, WEIGHTS
from grace.model.checkpoints.weights_file import Weights, open_weights

CONFIG = "config.json"

_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 64 << 20
_INTEGER_DIGITS = 40

Keys = TypeVar("Keys")


@dataclass(slots=True)
class HfTensors:
    """The folder's tensors by name. It checks their shapes, and knows which ones are unused."""

    folder: Path
    owners: Mapping[str, Weights]
    unused: set[str]
    dtype: torch.dtype | None

    def __contains__(self, name: str) -> bool:
        return name in self.owners

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor on the CPU."""
        file = self.owners.get(name)
        if file is None:
            fault = f"missing tensor {name!r} {list(shape)} by {CONFIG}; copy the whole folder"
            raise CheckpointError(str(self.folder), fault)
        file.require_shape(name, shape, CONFIG)
        self.unused.discard(name)
        return file.read(name, self.dtype)

    def take_tied(self, name: str, source: str, *shape: int) -> Tensor:
        """Return `name` if the folder has it, else the tensor that it is tied to."""
        return self.take(name if name in self else source, *shape)

    def require_all_used(self) -> None:
        for name in sorted(self.unused):
            fault = f"unexpected tensor {name!r}: {CONFIG} has no such part; save without it"
            raise self.owners[name].fault(fault)


@dataclass(frozen=True, slots=True)
class HfFolder:
    """A folder whose config.json can be read."""

    path: Path
    values: Mapping[str, Any]  # of config.json

    @property
    def config(self) -> str:
        """The path of config.json, with which errors start."""
        return str(self.path / CONFIG)

    def keys(self, cls: type[Keys], **changed: Any) -> Keys:
        """Load a section from the keys of config.json that it declares."""
        values = {**self.values, **changed}
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return load_section(cls, {k: v for k, v in values.items() if k in known}, self.config)

    @staticmethod
    def keys_by_name(section: type[Any]) -> dict[str, str]:
        """Return the section's keys by GRACE's names, which the keys' annotations give."""
        hints = get_type_hints(section, include_extras=True)
        return {name: key for key, hint in hints.items() if (name := declaration(hint)[1].words)}

    @contextmanager
    def tensors(
        self, is_ignored: Callable[[str], bool], dtype: torch.dtype | None = None
    ) -> Iterator[HfTensors]:
        """Open the weights. Each tensor is read as `dtype`, or else as it is stored."""
        with ExitStack() as files:
            opened = [files.enter_context(open_weights(path)) for path in _shards(self.path)]
            owners = {name: file for file in opened for name in file.shapes}
            unused = {name for name in owners if not is_ignored(name)}
            yield HfTensors(self.path, owners, unused, dtype)


def open_folder(path: Path) -> HfFolder:
    if not path.is_dir():
        raise InputError(f"{path}: no Hugging Face folder here: expected one with {CONFIG}")
    return HfFolder(path, read_json(path / CONFIG))


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object. Integers of more than 40 digits become floats."""
    try:
        value = json.loads(read_regular(path, _MAX_JSON_BYTES), parse_int=_integer)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; copy the folder") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON that can be read: {error}; copy it again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object, got {value!r:.60}; copy it again")
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _INTEGER_DIGITS else float(text)


def _shards(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / _INDEX).exists():
        for pickle in sorted([*folder.glob("*.bin"), *folder.glob("*.pt")]):
            raise CheckpointError(str(pickle), PICKLE_REMEDY)
        raise CheckpointError(
            str(folder / WEIGHTS), "missing; copy the whole folder, and merge adapters before"
        )
    owners = read_json(folder / _INDEX).get("weight_map")
    names: set[str] = set()
    for name in owners.values() if isinstance(owners, dict) else (owners,):
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            fault = f"weight_map: expected names of files in this folder, got {name!r:.60}"
            raise CheckpointError(str(folder / _INDEX), fault)
        if not (folder / name).exists():
            raise CheckpointError(str(folder / name), f"missing, but in {_INDEX}; copy it, too")
        names.add(name)
    return [folder / name for name in sorted(names)]
