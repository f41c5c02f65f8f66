"""Open the files that paths from outside name, and wait for nothing but their disk.

Such a path may lead to a pipe without a writer, to a device without an end, or to a file that
another process has leased. Errors are OSErrors, whose `strerror` is a fault for people.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grace.configs.errors import InputError


def open_regular(path: str | Path, folder: int | None = None, flags: int = 0) -> int:
    """Return a descriptor of a regular file. A link to one will do, unless `flags` forbid links."""
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    not_regular = OSError(errno.EINVAL, "not a regular file", str(path))
    try:
        file = os.open(path, flags, dir_fd=folder)
    except BlockingIOError as error:
        fault = "another process has a lease on it; try again once it has let go"
        raise OSError(error.errno, fault, str(path)) from None
    except OSError as error:
        raise (not_regular if error.errno == errno.ENXIO else error) from None  # ENXIO: a socket
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise not_regular
    except OSError:
        os.close(file)
        raise
    return file


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(path: Path, mode: int = 0o644) -> int | None:
    """Lock a file, made if absent. Return the descriptor that holds the lock until it is closed.

    None: another process holds it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sync(path: Path) -> None:
    """Sync a file, or a folder, so that the names in it survive a power cut."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as opened:
        os.fsync(opened)


def require_new(folder: Path) -> Path:
    """Return a folder to write. Refuse one that is there already, unless it is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is already there; choose a new folder, or remove this one")
    return folder


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder to fill. At the end it becomes `out`, whole or not at all."""
    out = Path(os.path.realpath(out))  # keep a link, and write its target
    partial = out.with_name(f".writing-{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # from a writer that was killed
        partial.mkdir()
        yield partial
        for path in (*partial.iterdir(), partial):
            sync(path)
        partial.rename(out)
        sync(out.parent)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file that must not have more than `most` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return content
