"""The build: what makes a library current, what makes it stale, and what a failure says."""

import ctypes
import json
import shutil
from collections.abc import Callable
from ctypes import c_int32
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import NativeError
from grace.native import build as native_build
from grace.native.build import LIBRARY_NAME, RECORD_NAME, build, read_record, source_digest
from grace.native.loader import array_in, array_out, declare, open_library

pytestmark = pytest.mark.subprocess  # each of them runs the compiler

SOURCE = """
#include "grace/twice.h"
#define API extern "C" __attribute__((visibility("default")))
API const char* grace_source_digest() { return GRACE_SOURCE_DIGEST; }
API const char* grace_last_error() { return "it was odd"; }
API int twice(const int* in, int count, int* out) {
  for (int i = 0; i < count; ++i) out[i] = TWO * in[i];
  return count % 2;
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "include" / "grace").mkdir(parents=True)
    (tmp_path / "src" / "abi.cpp").write_text(SOURCE)
    (tmp_path / "src" / "other.cpp").write_text("int other() { return 63; }\n")
    (tmp_path / "include" / "grace" / "twice.h").write_text("#define TWO 2\n")
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that the compiler wrote, as they are written."""
    written: list[str] = []
    run = native_build._run_into

    def recorded(result: Path, command: list[str]) -> None:
        run(result, command)
        written.append(result.name.partition(".")[0])

    monkeypatch.setattr(native_build, "_run_into", recorded)
    return written


def test_a_library_says_the_digest_of_its_sources(root: Path) -> None:
    library = build(root / "out", root=root)
    digest = source_digest(root)
    assert digest
    assert open_library(library, digest).grace_source_digest() == digest.encode()
    record = read_record(root / "out")
    assert record is not None
    assert record.digest == digest
    assert "-O3" in record.flags


def test_a_declared_function_fills_arrays_and_raises_what_the_library_says(root: Path) -> None:
    library = open_library(build(root / "out", root=root), source_digest(root))
    signature = (array_in(np.int32), c_int32, array_out(np.int32))
    twice = declare("twice", *signature, library=lambda: library)
    out = np.full(4, -1, np.int32)
    twice(np.arange(4, dtype=np.int32), 4, out)
    assert out.tolist() == [0, 2, 4, 6]
    with pytest.raises(NativeError, match=r"^twice: it was odd$"):
        twice(np.arange(3, dtype=np.int32), 3, out)


@pytest.mark.parametrize(
    "wrong",
    [
        np.arange(4, dtype=np.int64),
        np.arange(8, dtype=np.int32)[::2],
        np.zeros((2, 2), np.int32),
        [1, 2, 3, 4],
        None,
    ],
    ids=["dtype", "stride", "rank", "list", "none"],
)
def test_an_array_that_does_not_fit_never_reaches_the_library(root: Path, wrong: object) -> None:
    library = open_library(build(root / "out", root=root), None)
    twice = declare(
        "twice", array_in(np.int32), c_int32, array_out(np.int32), library=lambda: library
    )
    with pytest.raises(ctypes.ArgumentError):
        twice(wrong, 4, np.zeros(4, np.int32))


def test_an_array_that_must_not_be_written_is_no_output(root: Path) -> None:
    library = open_library(build(root / "out", root=root), None)
    twice = declare(
        "twice", array_in(np.int32), c_int32, array_out(np.int32), library=lambda: library
    )
    out = np.zeros(4, np.int32)
    out.flags.writeable = False
    with pytest.raises(ctypes.ArgumentError):
        twice(np.zeros(4, np.int32), 4, out)


def test_a_current_library_is_not_built_again(root: Path, compiled: list[str]) -> None:
    build(root / "out", root=root)
    assert sorted(compiled) == ["abi", "libgrace_cpu", "other"]
    compiled.clear()
    build(root / "out", root=root)
    assert compiled == []


def test_only_what_changed_is_compiled_again(root: Path, compiled: list[str]) -> None:
    build(root / "out", root=root)
    compiled.clear()
    (root / "src" / "other.cpp").write_text("int other() { return 111; }\n")
    build(root / "out", root=root)
    assert sorted(compiled) == ["abi", "libgrace_cpu", "other"]  # abi.cpp holds the digest
    compiled.clear()
    (root / "src" / "new.cpp").write_text("int fresh() { return 1; }\n")
    build(root / "out", root=root)
    assert sorted(compiled) == ["abi", "libgrace_cpu", "new"]
    assert len(list((root / "out" / "objects").iterdir())) == 3


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "source": lambda root: (root / "src" / "other.cpp").write_text("int other();\n"),
    "header": lambda root: (root / "include" / "grace" / "twice.h").write_text("#define TWO 3\n"),
    "new file": lambda root: (root / "src" / "new.cpp").touch(),
    "lost file": lambda root: (root / "src" / "other.cpp").unlink(),
    "renamed": lambda root: (root / "src" / "other.cpp").rename(root / "src" / "z.cpp"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_library_older_than_its_sources_is_refused(root: Path, change: Change) -> None:
    library = build(root / "out", root=root)
    change(root)
    with pytest.raises(NativeError, match="native library is older than its sources: run `make n"):
        open_library(library, source_digest(root))


def test_another_compiler_means_another_library(
    root: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root / "out", root=root)
    compiled.clear()
    monkeypatch.setenv("CXX", "g++ -DOTHER")
    build(root / "out", root=root)
    assert len(compiled) == 3


@pytest.mark.parametrize("record", ["", "[]", "{}", json.dumps({"digest": "0"})])
def test_a_damaged_record_means_a_new_build(root: Path, compiled: list[str], record: str) -> None:
    build(root / "out", root=root)
    compiled.clear()
    (root / "out" / RECORD_NAME).write_text(record)
    build(root / "out", root=root)
    assert compiled == ["libgrace_cpu"]


def test_a_failed_compilation_says_what_the_compiler_said_and_keeps_the_old_library(
    root: Path,
) -> None:
    library = build(root / "out", root=root)
    before = library.read_bytes()
    (root / "src" / "other.cpp").write_text("int other() { int unused; return 1; }\n")
    with pytest.raises(NativeError, match=r"(?s)the C\+\+ compiler failed.*unused"):
        build(root / "out", root=root)
    assert library.read_bytes() == before
    assert not list((root / "out").rglob("*.partial"))


def test_without_a_compiler_the_error_names_the_package_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NativeError, match=r"no C\+\+ compiler found .* install one .*: g\+\+;"):
        build(root / "out", root=root)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(NativeError, match=r"^CXX=no-such-compiler -m64: no such compiler"):
        build(root / "out", root=root)


def test_a_folder_without_sources_cannot_be_built_but_its_library_can_be_used(
    root: Path,
) -> None:
    library = build(root / "out", root=root)
    shutil.rmtree(root / "src")
    assert source_digest(root) is None
    open_library(library, source_digest(root))
    with pytest.raises(NativeError, match="no C\\+\\+ sources here"):
        build(root / "out", root=root)


def test_a_source_that_changes_during_the_build_fails_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = native_build._run_into

    def meddling(result: Path, command: list[str]) -> None:
        run(result, command)
        (root / "src" / "other.cpp").write_text("int other() { return 0; }\n")

    monkeypatch.setattr(native_build, "_run_into", meddling)
    with pytest.raises(NativeError, match="changed during their build: run it again"):
        build(root / "out", root=root)
    assert not (root / "out" / LIBRARY_NAME).exists()


def test_a_bare_build_leaves_only_the_library_and_its_record(tmp_path: Path) -> None:
    assert native_build.main(["--bare", "--out", str(tmp_path / "out")]) == 0
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert left == {LIBRARY_NAME, RECORD_NAME}
