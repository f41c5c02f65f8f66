"""A publish that is killed at any step leaves the old or the new version current, never neither."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grace.index.storage import current_version, next_version, publish, versions, write_snapshot
from grace.index.storage.folder import writers_lock
from grace.index.verify import verify_snapshot
from support.forgery import make_version, tiny_snapshot
from support.killed import deaths_of


def write_and_publish(root: Path, version: int) -> None:
    write_snapshot(tiny_snapshot(version), root)
    publish(root, version)


@pytest.mark.subprocess
def test_a_writer_killed_at_any_call_leaves_the_old_or_the_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first calls remove the files that another killed writer left.

    A kill, unlike a power cut, loses nothing that was written: to sync would only take time.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    base, outside = tmp_path / "root", tmp_path / "outside"
    write_and_publish(base, 1)
    version = base / f"{1:020d}"
    shutil.copytree(version, base / ".writing-00000000000000000002")
    (base / ".CURRENT.new").write_text("0000")
    outside.mkdir()
    (outside / "kept").touch()
    (base / ".writing-00000000000000000009").symlink_to(outside)
    left = Counter[int | None]()

    def check(root: Path) -> None:
        """Old or new, the current version is whole, and so is all that has a version's name."""
        left[current_version(root)] += 1
        for each in versions(root):
            verify_snapshot(root, each, deep=True, threads=1)
        following = next_version(root)
        write_and_publish(root, following)
        assert current_version(root) == following
        names = sorted(path.name for path in root.iterdir() if not path.name.isdigit())
        assert names == [".lock", "CURRENT"]
        shutil.rmtree(root)

    deaths = deaths_of(
        lambda: Path(shutil.copytree(base, tmp_path / "trial", symlinks=True)),
        lambda root: write_and_publish(root, 2),
        check,
    )
    assert (outside / "kept").exists()
    assert left.keys() == {1, 2}
    assert left[1] > 4 * len(list(version.iterdir()))
    assert deaths - left[1] >= 2  # CURRENT's folder is synced, and descriptors are closed


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls that decide what survives a power cut, in the order in which they come."""
    calls: list[str] = []
    real_sync = os.fsync

    def synced(file: int) -> None:
        calls.append(f"fsync {Path(f'/proc/self/fd/{file}').readlink().name}")
        real_sync(file)

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(old: str, new: str, **keywords: Any) -> Any:
            calls.append(f"{name} {old} {new}")
            return call(old, new, **keywords)

        return wrapped

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    return calls


def test_nothing_gets_its_name_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded_calls(monkeypatch)
    root = tmp_path / "root"
    version = make_version(root, 1)
    publish(root, 1)
    partial = ".writing-00000000000000000001"
    *files, manifest, folder, rename, parent, current, replace, parent_again = calls
    arrays = {path.name for path in version.iterdir()} - {"MANIFEST.json"}
    assert {call.removeprefix("fsync ") for call in files} == arrays
    assert [manifest, folder] == ["fsync MANIFEST.json", f"fsync {partial}"]
    assert [rename, parent] == [f"rename {partial} 00000000000000000001", "fsync root"]
    assert [current, replace, parent_again] == [
        "fsync .CURRENT.new",
        "replace .CURRENT.new CURRENT",
        "fsync root",
    ]


def test_writers_take_turns(tmp_path: Path) -> None:
    make_version(tmp_path, 1)
    with writers_lock(tmp_path):
        writer = threading.Thread(target=make_version, args=(tmp_path, 2))
        publisher = threading.Thread(target=publish, args=(tmp_path, 1))
        writer.start()
        publisher.start()
        writer.join(0.2)
        publisher.join(0.05)
        assert writer.is_alive()
        assert publisher.is_alive()
        assert (versions(tmp_path), current_version(tmp_path)) == ((1,), None)
    writer.join()
    publisher.join()
    assert (versions(tmp_path), current_version(tmp_path)) == ((1, 2), 1)
