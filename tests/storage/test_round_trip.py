"""A snapshot loads as it was written, and readers use it only once it is published.

A publish that is killed at any step leaves the old or the new version current, never neither.
"""

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from grace.configs.eligibility import CD, MatcherMode
from grace.configs.errors import InputError, SnapshotError
from grace.index.allocation import free_kept, kept_bytes, mapped_memory, reused_memory
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.storage import (
    current_version,
    load_snapshot,
    next_version,
    publish,
    versions,
    write_snapshot,
)
from grace.index.storage.arrays import arrays_of
from grace.index.storage.folder import writers_lock
from grace.index.verify import verify_snapshot
from support.arrays import assert_same_arrays
from support.forgery import make_version, small_snapshot, tiny_snapshot
from support.killed import deaths_of
from support.plain_builder import plain_snapshot
from support.strategies import Case, cases, examples


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    assert found.facts == expected.facts
    assert_same_arrays(found, expected)


@given(case=cases(most_ads=25))
@examples(25)
def test_what_is_written_is_what_is_loaded(
    case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, MatcherMode.CD)
    path = write_snapshot(snapshot, root)
    assert_same(load_snapshot(path, eligibility=CD, threads=1), snapshot)
    report = verify_snapshot(path, deep=True, threads=3)
    assert (report.deep, report.is_current) == (True, False)


def test_the_largest_facts_survive(tmp_path: Path) -> None:
    snapshot = small_snapshot()
    facts = replace(
        snapshot.facts,
        version=2**64 - 1,
        sid_space="æ" * 255,
        rejects=2**64 - 1,
        updates_watermark=2**64 - 1,
    )
    write_snapshot(replace(snapshot, facts=facts), tmp_path)
    assert load_snapshot(tmp_path, 2**64 - 1).facts == facts
    with pytest.raises(InputError, match="is the last possible"):
        next_version(tmp_path)


def test_arrays_load_into_the_memory_that_the_caller_gives(tmp_path: Path) -> None:
    given_out: list[np.ndarray] = []

    def allocate(size: int) -> np.ndarray:
        given_out.append(np.full(size, 0xA5, np.uint8))
        return given_out[-1]

    snapshot = load_snapshot(make_version(tmp_path), allocate=allocate)
    assert_same(derive(snapshot, CD, 1), small_snapshot())
    assert snapshot.exact is not None
    for array in (*arrays_of(snapshot).values(), snapshot.exact.leaf_rules):
        assert array.size == 0 or any(np.may_share_memory(array, each) for each in given_out)


def test_a_written_version_is_not_current_until_it_is_published(tmp_path: Path) -> None:
    make_version(tmp_path, 1)
    assert current_version(tmp_path) is None
    with pytest.raises(InputError, match=r"here; `grace publish` a version \(1\)"):
        load_snapshot(tmp_path)
    assert publish(tmp_path, 1) is None
    make_version(tmp_path, 63)
    assert (current_version(tmp_path), load_snapshot(tmp_path).facts.version) == (1, 1)
    assert load_snapshot(tmp_path, 63).facts.version == 63
    assert publish(tmp_path, 63) == 1
    assert load_snapshot(tmp_path).facts.version == 63
    assert (tmp_path / "CURRENT").read_bytes() == b"00000000000000000063\n"


def test_a_version_loads_by_its_own_path_too(tmp_path: Path) -> None:
    path = make_version(tmp_path, 5)
    assert load_snapshot(path).facts.version == load_snapshot(path, 5).facts.version == 5
    with pytest.raises(InputError, match="is version 5, not 6"):
        load_snapshot(path, 6)
    with pytest.raises(InputError, match="no version 6 here; it has 5"):
        load_snapshot(path.with_name("00000000000000000006"))


def test_versions_only_increase_whatever_else_is_in_the_root(tmp_path: Path) -> None:
    assert versions(tmp_path / "absent") == ()
    assert next_version(tmp_path / "absent") == 1
    for version in (2, 10, 111):
        make_version(tmp_path, version)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000000000000000000").mkdir()
    (tmp_path / "99999999999999999999").mkdir()
    assert versions(tmp_path) == (2, 10, 111)
    assert next_version(tmp_path) == 112
    before = (tmp_path / f"{111:020d}" / "MANIFEST.json").read_bytes()
    assert [make_version(tmp_path, taken).name[-3:] for taken in (111, 6)] == ["112", "113"]
    assert (tmp_path / f"{111:020d}" / "MANIFEST.json").read_bytes() == before


def test_a_full_disk_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, written = os.write, 0

    def write(file: int, content: bytes) -> int:
        nonlocal written
        written += 1
        if written == 11:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(InputError, match="the disk is full; free some space"):
            make_version(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    make_version(tmp_path, 1)


def test_a_disk_that_would_be_full_is_an_error_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*status[:4], 0, *status[5:10])))
    with pytest.raises(InputError, match=r"needs 0\.02 GB, the disk has 0\.00 GB free"):
        make_version(tmp_path, 1)


def test_a_write_that_takes_only_part_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: real_write(file, content[:11]))
    assert_same(load_snapshot(make_version(tmp_path), eligibility=CD), small_snapshot())


def test_an_array_that_does_not_fit_the_rest_is_not_written(tmp_path: Path) -> None:
    snapshot = small_snapshot()
    ads = replace(snapshot.ads, ad_weight=snapshot.ads.ad_weight[:-1])
    with pytest.raises(SnapshotError, match=r"ad_weight\.npy: shape must be \[8\]"):
        write_snapshot(replace(snapshot, ads=ads), tmp_path)
    assert versions(tmp_path) == ()
    ads = replace(snapshot.ads, ad_rule=snapshot.ads.ad_rule.astype(np.int64))
    with pytest.raises(SnapshotError, match=r"ad_rule\.npy: dtype must be <i4"):
        write_snapshot(replace(snapshot, ads=ads), tmp_path)


def test_mapped_memory_is_given_back() -> None:
    size = 64 << 20
    before = resident_bytes()
    memory = mapped_memory(size)
    memory[:] = 7
    assert resident_bytes() - before > size // 2
    del memory
    assert resident_bytes() - before < size // 2


def test_memory_is_used_again_by_arrays_of_about_its_size_until_the_rest_is_freed() -> None:
    free_kept()
    size, before = 64 << 20, resident_bytes()
    memory = reused_memory(size)
    view, address = memory[5:].view(), memory.ctypes.data
    memory[:] = 7
    del memory
    assert kept_bytes() == 0
    del view
    assert size < kept_bytes() < 1.1 * size
    assert reused_memory(size // 2).ctypes.data != address
    memory = reused_memory(size + 4096)
    assert (memory.ctypes.data, memory[0], memory[5]) == (address, 7, 7)
    free_kept()
    memory[:] = 8
    del memory
    free_kept()
    assert kept_bytes() == 0
    assert resident_bytes() - before < size // 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
