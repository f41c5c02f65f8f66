"""A folder for the files of one build, gone when the build is; of killed builds, too."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from configs.errors import InputError
from index.storage.folder import writers_lock

__all__ = ["SCRATCH", "scratch_folder"]

SCRATCH = ".sharding-"
"""Begins the name of such a folder."""

_IN_USE = "in-use"  # locked (flock) while the build lives


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    try:
        with writers_lock(parent):
            _remove_abandoned(parent)
            folder = Path(mkdtemp(prefix=SCRATCH, dir=parent)).absolute()
            in_use = _lock(folder)
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


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{SCRATCH}*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        in_use = _lock(folder)
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
