"""Files and folders of a snapshot root: names are checked, no symbolic link is followed.

Writers hold a lock; each one first removes what a killed writer has left.
"""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from grace.configs.errors import InputError, SnapshotError
from grace.configs.regular_files import closing, open_regular
from grace.index.progress import Notify
from grace.index.snapshot import MAX_VERSION

LOCK = ".lock"
NEW_CURRENT = ".CURRENT.new"
PARTIAL = ".writing-"  # begins the name of a version's folder until it is complete

_VERSION_NAME = re.compile(r"[0-9]{20}")


def version_name(version: int) -> str:
    return f"{version:020d}"


def version_of_name(name: str) -> int | None:
    """Return the version that a folder is named after: 20 digits, 1 to 2^64 - 1. Else None."""
    if not _VERSION_NAME.fullmatch(name) or not 1 <= int(name) <= MAX_VERSION:
        return None
    return int(name)


def open_root(root: Path) -> AbstractContextManager[int]:
    try:
        return closing(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise InputError(
            f"{root}: no snapshot root here ({error.strerror}); name another folder"
        ) from None


def open_folder(name: str, folder: int) -> AbstractContextManager[int]:
    """A descriptor of a folder inside another."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return closing(os.open(name, flags, dir_fd=folder))
    except OSError as error:
        raise _fault(name, folder, error) from None


@contextmanager
def open_file(name: str, folder: int) -> Iterator[tuple[int, int]]:
    try:
        with closing(open_regular(name, folder, os.O_NOFOLLOW)) as file:
            yield file, os.fstat(file).st_size
    except OSError as error:
        raise _fault(name, folder, error) from None


def _fault(name: str, folder: int, error: OSError) -> SnapshotError:
    """Return why something in a folder does not open, or a file of it cannot be read."""
    if isinstance(error, FileNotFoundError):
        return SnapshotError(name, "missing")
    with suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return SnapshotError(name, "is a symbolic link; a snapshot holds none")
    if isinstance(error, NotADirectoryError):
        return SnapshotError(name, "is not a folder")
    return SnapshotError(name, f"cannot be read: {error.strerror}")


def read_small(name: str, folder: int, most: int) -> bytes:
    """Return the content of a file that must not have more than `most` bytes."""
    with open_file(name, folder) as (file, size):
        if size > most:
            raise SnapshotError(name, f"has {size} bytes, at most {most} are allowed")
        with open(file, "rb", closefd=False) as opened:
            content = opened.read(size + 1)
    if len(content) != size:
        raise SnapshotError(name, "changed while it was read")
    return content


@contextmanager
def writers_lock(root: Path, on_wait: Notify = lambda _: None) -> Iterator[int]:
    """A descriptor of the root folder, made if missing, while no other process writes there.

    Call `on_wait` if another process writes and this one has to wait.
    """
    root.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open_root(root) as folder, closing(os.open(LOCK, flags, 0o644, dir_fd=folder)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(f"waiting for the lock of {root}: another command writes there")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def write_new(
    name: str,
    folder: int,
    parts: Iterable[bytes | memoryview],
    *,
    synced: bool = True,
    mode: int = 0o644,
) -> None:
    """Write a file that must not exist yet; `synced`: down to the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(name, flags, mode, dir_fd=folder)) as file:
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(file, left) :]
        if synced:
            os.fsync(file)


def remove_leftovers(folder: int) -> None:
    """Remove what killed writers have left. Only under the writers' lock: they are gone then."""
    for name in os.listdir(folder):
        if name == NEW_CURRENT or name.startswith(PARTIAL):
            remove_tree(name, folder)


def remove_tree(name: str, folder: int) -> None:
    """Remove a file, a link or a folder with all that is in it; follow no link."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
