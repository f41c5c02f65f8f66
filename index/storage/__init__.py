"""Snapshots at rest: written once, published atomically, and read as if an enemy had written them.

docs/snapshot.md is the format. `write_snapshot` makes a version, `publish` makes it current,
`load_snapshot` returns it after every check, and `verify_snapshot` reports what it found.
"""

from grace.index.storage.reader import VerifyReport, load_snapshot, verify_snapshot
from grace.index.storage.versions import (
    Published,
    current_version,
    next_version,
    publish,
    published,
    root_of,
    versions,
)
from grace.index.storage.writer import write_snapshot

__all__ = [
    "Published",
    "VerifyReport",
    "current_version",
    "load_snapshot",
    "next_version",
    "publish",
    "published",
    "root_of",
    "verify_snapshot",
    "versions",
    "write_snapshot",
]
