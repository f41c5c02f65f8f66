"""Kill a writer of snapshots at every one of its file-system calls.

    python killed_writer.py ROOT

ROOT has version 1, published. Each writer writes and publishes version 2. After its death the next
build and publish must succeed. The program prints, as JSON, how many deaths there were, and after
how many of them each version was current.
"""

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

from grace.index.storage import (
    current_version,
    next_version,
    publish,
    versions,
    write_snapshot,
)
from grace.index.verify import verify_snapshot
from support.forgery import tiny_snapshot
from support.killed import deaths_of


def write_and_publish(root: Path, version: int) -> None:
    write_snapshot(tiny_snapshot(version), root)
    publish(root, version)


def check(root: Path) -> int:
    """Old or new, the current version is whole, and so is all that has the name of a version."""
    current = current_version(root)
    assert current in (1, 2), current
    for version in versions(root):
        verify_snapshot(root, version, deep=True, threads=1)
    assert current in versions(root)
    return current


def check_recovery(root: Path) -> None:
    version = next_version(root)
    write_and_publish(root, version)
    assert current_version(root) == version
    names = sorted(path.name for path in root.iterdir() if not path.name.isdigit())
    assert names == [".lock", "CURRENT"], names


def main(base: Path) -> None:
    # A kill, unlike a power cut, loses nothing that was written: to sync would only take time.
    os.__dict__["fsync"] = lambda _: None
    current = Counter[int]()

    def check_all(root: Path) -> None:
        current[check(root)] += 1
        check_recovery(root)
        shutil.rmtree(root)

    deaths = deaths_of(
        lambda: Path(shutil.copytree(base, base.with_name("trial"), symlinks=True)),
        lambda root: write_and_publish(root, 2),
        check_all,
    )
    print(json.dumps({"deaths": deaths, "old": current[1], "new": current[2] - 1}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
