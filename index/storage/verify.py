"""What `grace verify` reports: that a version passed every check, and what readers ignore in it."""

import os
from dataclasses import dataclass
from pathlib import Path

from grace.configs.errors import SnapshotError
from grace.configs.machine import available_cores
from grace.index.invariants import check_invariants
from grace.index.storage.array_file import digest_file, plain_memory
from grace.index.storage.folder import names_in
from grace.index.storage.layout import expected_arrays
from grace.index.storage.manifest import MANIFEST, Counts
from grace.index.storage.reader import OpenVersion, open_snapshot, read_snapshot
from grace.index.storage.versions import current_version


@dataclass(frozen=True, slots=True)
class VerifyReport:
    path: Path
    version: int
    is_current: bool
    created_at: str
    sid_space: str
    mode: str
    files: int
    bytes: int
    counts: Counts
    rejects: int
    deep: bool
    notes: tuple[str, ...]  # what a reader ignores


def verify_snapshot(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    deep: bool = False,
    threads: int | None = None,
) -> VerifyReport:
    """Run every check of a load, check arrays that a load skips and, if deep, the invariants.

    Raises SnapshotError with the file and the fault.
    """
    with open_snapshot(path, version) as opened:
        snapshot = read_snapshot(opened, threads or available_cores(), plain_memory)
        notes = _notes(opened)
        if deep:
            check_invariants(snapshot)
    manifest = opened.manifest
    return VerifyReport(
        path=opened.path,
        version=int(manifest.version),
        is_current=_is_current(opened),
        created_at=manifest.created_at,
        sid_space=manifest.sid_space,
        mode=manifest.matchers.mode,
        files=len(manifest.files),
        bytes=sum(entry.bytes for entry in manifest.files),
        counts=manifest.counts,
        rejects=manifest.rejects,
        deep=deep,
        notes=tuple(notes),
    )


def _notes(opened: OpenVersion) -> list[str]:
    expected = expected_arrays(opened.manifest)
    listed = {entry.file for entry in opened.manifest.files}
    notes = []
    for entry in opened.manifest.files:
        if entry.file not in expected:
            digest_file(entry, opened.folder)
            notes.append(f"{entry.file}: an array that this GRACE does not know and does not load")
    notes.extend(
        f"{name!r}: not listed in the manifest; no reader looks at it"
        for name in names_in(opened.folder)
        if name not in listed and name != MANIFEST
    )
    return notes


def _is_current(opened: OpenVersion) -> bool:
    try:
        return current_version(opened.path.parent) == int(opened.manifest.version)
    except SnapshotError:
        return False
