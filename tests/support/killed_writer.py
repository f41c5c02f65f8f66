"""Kill a writer of snapshots at every one of its file-system calls.

    python killed_writer.py ROOT

ROOT has version 1, published. Again and again a forked child writes and publishes version 2, and
dies by SIGKILL in its N-th call, N = 1, 2, ... until it gets through. After each death this one
looks at what is there, lets a next build and publish succeed, and starts over. It prints, as JSON,
how many deaths there were, and after how many of them each version was current.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grace.index.storage import (
    current_version,
    next_version,
    publish,
    versions,
    write_snapshot,
)
from grace.index.verify import verify_snapshot
from support.forgery import tiny_snapshot

CALLS = ("close", "fsync", "listdir", "mkdir", "open", "rename", "replace", "rmdir", "unlink")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_call(number: int) -> None:
    """Arms this process: its `number`-th call from now on is its last, and may be half done."""
    count = itertools.count(1)
    real_write = os.write

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if next(count) == number:
                die()
            return call(*arguments, **keywords)

        return wrapped

    def write(file: int, content: memoryview) -> int:
        if next(count) == number:
            real_write(file, content[: len(content) // 2])
            die()
        return real_write(file, content)

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    os.__dict__["write"] = write
    os.__dict__["writev"] = lambda file, parts: write(file, memoryview(b"".join(parts)))


def write_and_publish(root: Path, version: int) -> None:
    write_snapshot(tiny_snapshot(version), root)
    publish(root, version)


def survives(root: Path, number: int) -> bool:
    """True if the writer ended before the call in which it was to die."""
    child = os.fork()
    if child == 0:
        die_in_call(number)
        write_and_publish(root, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"the writer failed by itself at call {number}")
    return os.WIFEXITED(status)


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
    outcomes = {1: 0, 2: 0}
    for number in itertools.count(1):
        root = base.with_name("trial")
        shutil.copytree(base, root)
        through = survives(root, number)
        current = check(root)
        check_recovery(root)
        shutil.rmtree(root)
        if through:
            break
        outcomes[current] += 1
    print(json.dumps({"deaths": number - 1, "old": outcomes[1], "new": outcomes[2]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
