"""A folder for the files of one build, removed at its end; a killed build's, by the next one."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import numpy as np

from grace.configs.errors import InputError
from grace.configs.regular_files import try_lock

SCRATCH = ".sharding-"  # begins the name of such a folder

_UNLOCKED = f".new{SCRATCH}"  # until it is locked, so that no build removes it as abandoned
_IN_USE = "in-use"  # locked (flock) while the build lives
_FULL = (errno.ENOSPC, errno.EDQUOT)

Arrays = TypeVar("Arrays")


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A folder in the snapshot root, where other builds may run."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root)
        unlocked = Path(mkdtemp(prefix=_UNLOCKED, dir=root)).absolute()
        in_use = try_lock(unlocked / _IN_USE)
        folder = unlocked.with_name(unlocked.name.replace(_UNLOCKED, SCRATCH, 1))
        unlocked.rename(folder)
    except OSError as error:
        fault = f"cannot make a folder for the shards: {error.strerror}"
        raise InputError(f"{root}: {fault}; build into another root") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if in_use is not None:
            os.close(in_use)


@contextmanager
def scratch_faults(step: str, scratch: Path) -> Iterator[None]:
    """Report a fault of files in a scratch folder, in one line with the step that met it."""
    try:
        yield
    except OSError as error:
        fault = "the disk is full" if error.errno in _FULL else error.strerror
        raise InputError(
            f"{step}: {scratch.parent}: {fault}; free some space there, or build into another root"
        ) from None


def save_arrays(arrays: Any, folder: Path) -> None:
    """Write a dataclass of arrays, which `map_arrays` maps into the memory of many tasks."""
    for field in fields(arrays):
        np.save(folder / f"{field.name}.npy", getattr(arrays, field.name))


def map_arrays(kind: type[Arrays], folder: Path) -> Arrays:
    files = (folder / f"{field.name}.npy" for field in fields(kind))  # type: ignore[arg-type]
    return kind(*(np.load(file, mmap_mode="r", allow_pickle=False) for file in files))


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{SCRATCH}*"):
        try:
            in_use = try_lock(folder / _IN_USE)
        except OSError:  # its build has just removed it, or it is another user's
            continue
        if in_use is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(in_use)
