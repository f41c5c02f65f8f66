"""Snapshots at rest: written once, published atomically, and read as if an enemy had written them.

docs/snapshot.md is the format. `write_snapshot` makes a version, `publish` makes it current,
`load_snapshot` returns it after every check. `grace.index.verify` reports what it finds.
"""

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
