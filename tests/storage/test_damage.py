"""A reader refuses any damage to a file of a snapshot, and says which file and why."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import SnapshotError
from grace.index.storage import current_version, load_snapshot, publish
from grace.index.storage.arrays import arrays_of
from grace.index.storage.manifest import parse_manifest
from grace.index.verify import verify_snapshot
from support.forgery import refusal, small_snapshot

FILES = [*sorted(arrays_of(small_snapshot())), "MANIFEST.json"]
HEADER = 128  # of an .npy file: the data begins here
FLIPS = [0, 8, 40, HEADER - 1, HEADER, -1]


def assert_refused(version: Path, file: str, fault: str) -> None:
    refused = refusal(version)
    assert refused.file == file
    assert fault in refused.fault


def test_a_flipped_bit_anywhere_in_an_array_is_damage(version: Path) -> None:
    for file in FILES[:-1]:
        content = (version / file).read_bytes()
        for place in FLIPS:
            if place < len(content):
                (version / file).write_bytes(with_flipped_bit(content, place))
                assert_refused(version, file, "damaged: its digest is")
        (version / file).write_bytes(content)
    load_snapshot(version)


def test_a_flipped_bit_anywhere_in_the_manifest_is_damage(version: Path) -> None:
    content = (version / "MANIFEST.json").read_bytes()
    parse_manifest(content)
    for place in range(0, len(content), 3):
        with pytest.raises(SnapshotError, match=r"^MANIFEST\.json: "):
            parse_manifest(with_flipped_bit(content, place))


def with_flipped_bit(content: bytes, place: int) -> bytes:
    flipped = bytearray(content)
    flipped[place] ^= 1 << (place % 8)
    return bytes(flipped)


@pytest.mark.parametrize("read", [load_snapshot, verify_snapshot])
def test_a_file_that_is_cut_extended_or_missing_is_damage(
    read: Callable[[Path], object], version: Path
) -> None:
    for file in FILES:
        path = version / file
        content = path.read_bytes()
        cut = (content[:kept] for kept in (0, 63, -1))
        for damaged in (*cut, content + b"\n", None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            with pytest.raises(
                SnapshotError, match="missing" if damaged is None else None
            ) as caught:
                read(version)
            assert caught.value.file == file
        path.write_bytes(content)
    read(version)


OTHERS: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.rename(path.with_name("aside"))),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("file", ["ad_ids.npy", "MANIFEST.json", "CURRENT"])
@pytest.mark.parametrize("other", OTHERS)
def test_only_regular_files_are_read(file: str, other: str, version: Path) -> None:
    root = version.parent
    publish(root, 1)
    path = (root if file == "CURRENT" else version) / file
    if other != "a link":
        path.unlink()
    OTHERS[other](path)
    fault = "is a symbolic link" if "link" in other else "cannot be read: not a regular file"
    assert_refused(root, file, fault)


def test_a_version_is_a_folder_of_its_own_name(version: Path, tmp_path: Path) -> None:
    linked, file = (tmp_path / f"{number:020d}" for number in (8, 9))
    linked.symlink_to(version)
    file.write_text("")
    assert_refused(linked, linked.name, "is a symbolic link")
    assert_refused(file, file.name, "is not a folder")
    renamed = version.rename(version.with_name("00000000000000000002"))
    assert_refused(renamed, "MANIFEST.json", f"says version {version.name}, but its folder is")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"00000000000000000001",
        b"00000000000000000001\r\n",
        b"00000000000000000000\n",
        b"99999999999999999999\n",
        "0000000000000000000\u0663\n".encode(),
        b"../../etc/passwd\n",
        b"0" * 5000,
    ],
)
def test_a_current_that_is_not_20_digits_is_refused_and_publish_repairs_it(
    content: bytes, version: Path
) -> None:
    root = version.parent
    (root / "CURRENT").write_bytes(content)
    for read in (current_version, load_snapshot):
        with pytest.raises(SnapshotError, match=r"/CURRENT: "):
            read(root)
    assert publish(root, 1) is None
    assert load_snapshot(root).facts.version == 1


def test_a_current_that_names_no_version_here_is_refused(version: Path) -> None:
    (version.parent / "CURRENT").write_text("00000000000000000111\n")
    with pytest.raises(SnapshotError, match="CURRENT: names version 111, which is not here"):
        load_snapshot(version.parent)


def test_a_file_that_shrinks_or_fails_while_it_is_read_is_refused(
    version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    for read, fault in (
        (lambda *_: 0, "became shorter while it was read"),
        (fail, r"\.npy: cannot be read: Input/output error"),
    ):
        monkeypatch.setattr(os, "preadv", read)
        with pytest.raises(SnapshotError, match=fault):
            load_snapshot(version)


def test_a_file_of_holes_larger_than_memory_is_not_read(
    version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else 100)
    with pytest.raises(SnapshotError, match=r"need 0\.0 GB of memory, this machine has 0"):
        load_snapshot(version)


def test_memory_that_the_process_does_not_get_is_an_error_of_the_snapshot(version: Path) -> None:
    def refuse(_: int) -> np.ndarray:
        raise MemoryError

    with pytest.raises(SnapshotError, match="this process may not have that much"):
        load_snapshot(version, allocate=refuse)
