"""Snapshots at rest: written once, published atomically, read as if an enemy wrote them."""

from grace.index.storage.reader import load_snapshot
from grace.index.storage.versions import (
    Published,
    current_version,
    next_version,
    publish,
    published,
    readable_current,
    root_of,
    versions,
)
from grace.index.storage.writer import write_snapshot
