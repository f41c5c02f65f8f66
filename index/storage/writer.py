"""Write a version: under a hidden name, down to the disk, then renamed; never half there."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from grace.configs.arrays import AnyArray
from grace.configs.errors import InputError
from grace.index.progress import Notify
from grace.index.snapshot import Snapshot
from grace.index.storage.array_file import write_array
from grace.index.storage.arrays import arrays_of, check_files, counts_of
from grace.index.storage.folder import (
    PARTIAL,
    open_folder,
    open_root,
    remove_leftovers,
    remove_tree,
    version_name,
    write_new,
    writers_lock,
)
from grace.index.storage.manifest import FORMAT, FORMAT_VERSION, MANIFEST, Manifest, render_manifest
from grace.index.storage.versions import next_version

_REMEDY = "free some space, or write to another root"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MARGIN = 16 << 20  # headers, the manifest, and the file system's own blocks


def write_snapshot(snapshot: Snapshot, root: Path, on_wait: Notify = lambda _: None) -> Path:
    """Write the facts' version, or the next free one, complete but not current. None changes."""
    manifest = _manifest(snapshot)
    arrays = arrays_of(snapshot)
    try:
        with writers_lock(root, on_wait) as folder:
            remove_leftovers(folder)
            version = max(snapshot.facts.version, next_version(root))
            needed = sum(array.nbytes for array in arrays.values()) + _MARGIN
            status = os.statvfs(root)
            free = status.f_bavail * status.f_frsize
            if free < needed:
                raise InputError(
                    f"{root}: the snapshot needs {needed / 1e9:.2f} GB, the disk has "
                    f"{free / 1e9:.2f} GB free; {_REMEDY}"
                )
            manifest = replace(manifest, version=version_name(version))
            _write_version(manifest, arrays, folder, synced=True)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise InputError(f"{root}: the disk is full; {_REMEDY}") from None
        raise InputError(f"{root}: cannot write the snapshot: {error.strerror}") from None
    return root / version_name(version)


def write_unsynced(snapshot: Snapshot, root: Path) -> None:
    """Write the only version of a temporary folder. Syncing would take longer than writing it."""
    with open_root(root) as folder:
        _write_version(_manifest(snapshot), arrays_of(snapshot), folder, synced=False)


def _write_version(
    manifest: Manifest, arrays: Mapping[str, AnyArray], root: int, *, synced: bool
) -> None:
    partial = f"{PARTIAL}{manifest.version}"
    os.mkdir(partial, 0o755, dir_fd=root)
    try:
        with open_folder(partial, root) as folder:
            files = tuple(
                write_array(name, array, folder, synced=synced) for name, array in arrays.items()
            )
            complete = replace(manifest, files=files)
            check_files(complete)
            write_new(MANIFEST, folder, [render_manifest(complete)], synced=synced)
            if synced:
                os.fsync(folder)
        os.rename(partial, manifest.version, src_dir_fd=root, dst_dir_fd=root)
    except BaseException:
        with suppress(OSError):
            remove_tree(partial, root)
        raise
    if synced:
        os.fsync(root)


def _manifest(snapshot: Snapshot) -> Manifest:
    """Return the manifest without its list of files."""
    facts = asdict(snapshot.facts)
    try:
        return Manifest(
            **{**facts, "version": version_name(snapshot.facts.version)},
            format=FORMAT,
            format_version=FORMAT_VERSION,
            vocab_sizes=tuple(map(int, snapshot.trie.vocab_sizes)),
            schema=snapshot.schema,
            counts=counts_of(snapshot),
            files=(),
        )
    except ValueError as error:
        raise InputError(f"cannot write this snapshot: {error}") from None
