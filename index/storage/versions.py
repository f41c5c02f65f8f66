"""The versions of a snapshot root, and which one is current.

CURRENT is a text file: 20 digits and a newline. A rename replaces it as a whole, so a reader sees
the old version or the new one.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grace.configs.errors import InputError, SnapshotError
from grace.index.progress import Notify
from grace.index.snapshot import MAX_VERSION
from grace.index.storage.folder import (
    NEW_CURRENT,
    open_folder,
    open_root,
    read_small,
    remove_leftovers,
    version_name,
    version_of_name,
    write_new,
    writers_lock,
)

CURRENT = "CURRENT"
_USUAL_NAME = "snapshots"  # of a root
_CURRENT_CONTENT = re.compile(rb"[0-9]{20}\n")
_PUBLISH = "make it anew with `grace publish ROOT VERSION`"


@dataclass(frozen=True, slots=True)
class Published:
    """What CURRENT names."""

    version: int | None  # None if nothing was published
    mark: tuple[int, int] | None = None  # differs after every publish, even one of the same version


def root_of(path: Path) -> Path:
    """Return the snapshot root of a path, which is ROOT or ROOT/VERSION."""
    path = path.absolute()
    return path if version_of_name(path.name) is None else path.parent


def published(path: Path) -> Published:
    """Return what CURRENT of ROOT names now. ROOT/VERSION names its own version for ever."""
    named = version_of_name(path.absolute().name)
    if named is not None:
        return Published(named)
    with open_root(path) as folder:
        try:
            return _read_current(folder)
        except SnapshotError as error:
            raise error.within(path) from None


def versions(root: Path) -> tuple[int, ...]:
    """Ascending; empty for a root that does not exist yet."""
    try:
        names = [path.name for path in root.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(
            f"{root}: no snapshot root here ({error.strerror}); name another folder"
        ) from None
    found = (version_of_name(name) for name in names)
    return tuple(sorted(version for version in found if version is not None))


def next_version(root: Path) -> int:
    latest = max(versions(root), default=0)
    if latest == MAX_VERSION:
        raise InputError(f"{root}: version {latest} is the last possible; use another root")
    return latest + 1


def current_version(root: Path) -> int | None:
    """Return the version that readers should use, or None if nothing was published."""
    return published(root).version


def readable_current(root: Path) -> int | None:
    """Return the current version; None also where CURRENT is damaged."""
    try:
        return current_version(root)
    except SnapshotError:
        return None


def publish(
    root: Path, version: int, *, only_forward: bool = False, on_wait: Notify = lambda _: None
) -> int | None:
    """Make a version current; return the one before it, None if there was none to read.

    With `only_forward` a newer one stays current. The version's content is not checked here, but by
    `verify_snapshot`.
    """
    with open_root(root):
        _require_version(root, version)
    try:
        with writers_lock(root, on_wait) as folder:
            remove_leftovers(folder)
            with open_folder(version_name(version), folder):
                pass
            # An unreadable CURRENT must not stop the command that repairs it.
            previous = readable_current(root)
            if not (only_forward and previous is not None and previous > version):
                write_new(NEW_CURRENT, folder, [f"{version_name(version)}\n".encode()])
                os.replace(NEW_CURRENT, CURRENT, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)  # the name survives a power cut
    except OSError as error:
        raise InputError(
            f"{root}: cannot publish {version}: {error.strerror}; what was current still is"
        ) from None
    return previous


def locate(path: Path, version: int | None) -> tuple[Path, int]:
    """Return the root and version that ROOT, ROOT and a version, or ROOT/VERSION mean."""
    path = path.absolute()
    named = version_of_name(path.name)
    if named is not None:
        if version not in (None, named):
            raise InputError(f"{path}: is version {named}, not {version}; leave one of them out")
        _require_version(path.parent, named)
        return path.parent, named
    if version is not None:
        _require_version(path, version)
        return path, version
    current = current_version(path)
    if current is None:
        there = versions(path)
        remedy = "build a version into it"
        if there:
            remedy = f"`grace publish` a version ({some_of(there)})"
        elif (path / _USUAL_NAME).is_dir() and versions(path / _USUAL_NAME):
            remedy = f"did you mean {path / _USUAL_NAME}?"
        raise InputError(f"{path}: nothing is published here; {remedy}")
    if current not in versions(path):
        fault = f"names version {current}, which is not here; {_PUBLISH}"
        raise SnapshotError(CURRENT, fault, path)
    return path, current


def _require_version(root: Path, version: int) -> None:
    there = versions(root)
    if version not in there:
        raise InputError(f"{root}: no version {version} here; it has {some_of(there)}")


def some_of(there: Sequence[int]) -> str:
    """Return the latest of these versions as text."""
    if not there:
        return "none"
    latest = ", ".join(map(str, there[-5:]))
    return latest if len(there) <= 5 else f"..., {latest}"


def _read_current(folder: int) -> Published:
    try:
        status = os.stat(CURRENT, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return Published(None)
    content = read_small(CURRENT, folder, 4096)
    version = version_of_name(content[:-1].decode("latin-1"))
    if not _CURRENT_CONTENT.fullmatch(content) or version is None:
        shown = repr(content[:40])[1:]
        raise SnapshotError(CURRENT, f"expected 20 digits and a newline, got {shown}; {_PUBLISH}")
    return Published(version, (status.st_ino, status.st_mtime_ns))
