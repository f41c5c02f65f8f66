"""A folder for the files of one build, removed at its end; a killed build's, by the next one."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from grace.configs.errors import InputError

SCRATCH = ".sharding-"
"""Begins the name of such a folder."""

_UNLOCKED = f".new{SCRATCH}"  # until it is locked, so that no build removes it as abandoned
_IN_USE = "in-use"  # locked (flock) while the build lives
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder in `parent`, which is made if missing and which builds and users may share."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        unlocked = Path(mkdtemp(prefix=_UNLOCKED, dir=parent)).absolute()
        in_use = _lock(unlocked)
        folder = unlocked.with_name(unlocked.name.replace(_UNLOCKED, SCRATCH, 1))
        unlocked.rename(folder)
    except OSError as error:
        raise InputError(
            f"{parent}: cannot make a folder for the shards: {error.strerror}; name another with "
            "--scratch"
        ) from None
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
            f"{step}: {scratch.parent}: {fault}; free some space there, or name another folder "
            "with --scratch"
        ) from None


def _remove_abandoned(parent: Path) -> None:
    """Other users' folders stay: only their owner can know whether they are abandoned."""
    for folder in parent.glob(f"{SCRATCH}*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        try:
            in_use = _lock(folder)
        except OSError:
            continue
        if in_use is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(in_use)


def _lock(folder: Path) -> int | None:
    """The lock's descriptor; None while another process holds it."""
    lock = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
