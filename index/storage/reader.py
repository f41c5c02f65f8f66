"""Read a version: sizes and digests, then what the arrays hold, and only then a Snapshot."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grace.configs.eligibility import EXACT, Eligibility
from grace.configs.errors import SnapshotError
from grace.configs.machine import available_cores
from grace.index.allocation import Allocate, plain_memory
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.storage.array_file import check_size, digest_file, map_array, read_array
from grace.index.storage.arrays import check_arrays, check_files, snapshot_of
from grace.index.storage.folder import open_folder, open_root, read_small, version_name
from grace.index.storage.manifest import MANIFEST, MAX_BYTES, FileEntry, Manifest, parse_manifest
from grace.index.storage.versions import locate


@dataclass(frozen=True, slots=True)
class OpenVersion:
    path: Path
    folder: int  # a descriptor: what is read is one folder, whatever is renamed meanwhile
    manifest: Manifest


def load_snapshot(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    eligibility: Eligibility = EXACT,
    threads: int | None = None,
    allocate: Allocate = plain_memory,
) -> Snapshot:
    """Return the current or the named version of ROOT, or that of ROOT/VERSION, to decode with."""
    threads = threads or available_cores()
    with open_snapshot(path, version) as opened:
        return derive(read_snapshot(opened, threads, allocate), eligibility, threads, allocate)


@contextmanager
def open_snapshot(path: str | os.PathLike[str], version: int | None) -> Iterator[OpenVersion]:
    """Open a version and check its manifest, but not its files."""
    root_path, version = locate(Path(path), version)
    name = version_name(version)
    with open_root(root_path) as root:
        try:
            with open_folder(name, root) as folder:
                manifest = parse_manifest(read_small(MANIFEST, folder, MAX_BYTES))
                if manifest.version != name:
                    raise SnapshotError(
                        MANIFEST, f"says version {manifest.version}, but its folder is {name}"
                    )
                check_files(manifest)
                yield OpenVersion(root_path / name, folder, manifest)
        except SnapshotError as error:
            inside = root_path if error.file == name else root_path / name
            raise error.within(inside) from None


def read_snapshot(
    opened: OpenVersion, threads: int, allocate: Allocate, readers: int | None = None
) -> Snapshot:
    """Return the facts. `readers` threads read the files, by default as many as check them."""
    entries = opened.manifest.files
    for entry in entries:
        check_size(entry, opened.folder)
    # A file of holes costs its author nothing; it must not kill this process.
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sum(entry.data_bytes for entry in entries) > there:
        raise _too_large(entries, f"this machine has {there / 1e9:.1f} GB")
    # The largest file first, so that threads end together. Reads and digests hold no lock.
    ordered = sorted(entries, key=lambda entry: -entry.bytes)
    try:
        with ThreadPoolExecutor(readers or threads) as pool:
            read = pool.map(lambda entry: read_array(entry, opened.folder, allocate), ordered)
            arrays = {entry.file: array for entry, array in zip(ordered, read, strict=True)}
    except MemoryError:
        raise _too_large(entries, "this process may not have that much") from None
    check_arrays(opened.manifest, arrays, threads)
    return snapshot_of(opened.manifest, arrays)


def map_snapshot(
    path: str | os.PathLike[str], version: int, to_check: Callable[[str], bool] = lambda _file: True
) -> Snapshot:
    """Return a version of mapped files; check the digests that `to_check` chooses, no content."""
    with open_snapshot(path, version) as opened:
        arrays = {}
        for entry in opened.manifest.files:
            (digest_file if to_check(entry.file) else check_size)(entry, opened.folder)
            header_bytes, file = entry.bytes - entry.data_bytes, opened.path / entry.file
            arrays[entry.file] = map_array(file, entry.dtype, entry.shape, header_bytes)
        return snapshot_of(opened.manifest, arrays)


def _too_large(entries: Iterable[FileEntry], limit: str) -> SnapshotError:
    needed = sum(entry.data_bytes for entry in entries)
    return SnapshotError(
        MANIFEST,
        f"its arrays need {needed / 1e9:.1f} GB of memory, {limit}; load it on a larger machine",
    )
