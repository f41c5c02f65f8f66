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
from grace.native.build import (
    CPU,
    build,
    main,
    read_record,
    source_digest,
)
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
LIBRARY = CPU.library


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of two sources and a header, built into its folder `out`. Tests change copies."""
    root = tmp_path_factory.mktemp("package")
    (root / "src").mkdir()
    (root / "include" / "grace").mkdir(parents=True)
    (root / "src" / "abi.cpp").write_text(SOURCE)
    (root / "src" / "other.cpp").write_text("int other() { return 63; }\n")
    (root / "include" / "grace" / "twice.h").write_text("#define TWO 2\n")
    build(root / "out", root=root)
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "package"))


@pytest.fixture
def written(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the files that the compiler, another one than before, wrote since the last call."""
    log, compiler = root / "log", root / "logging-compiler"
    compiler.write_text(
        f'#!/bin/sh\nfor file; do :; done\n[ "$file" = --version ] || basename "$file" >> {log}\n'
        'exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    def files() -> list[str]:
        names = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(name.partition(".")[0] for name in names)

    build(root / "out", root=root)
    assert files() == ["abi", "libgrace_cpu", "other"]  # another compiler makes another library
    return files


def test_a_library_reports_the_digest_of_its_sources(root: Path) -> None:
    digest = source_digest(root)
    assert digest
    library = open_library(root / "out" / LIBRARY, digest)
    assert library.grace_source_digest() == digest.encode()
    record = read_record(root / "out")
    assert record is not None
    assert record.digest == digest
    assert "-O3" in record.flags


@pytest.fixture
def twice(built: Path) -> Callable[..., None]:
    library = open_library(built / "out" / LIBRARY, source_digest(built))
    signature = (array_in(np.int32), c_int32, array_out(np.int32))
    return declare("twice", *signature, library=lambda: library)


def test_a_declared_function_fills_arrays_and_raises_the_library_s_error(
    twice: Callable[..., None],
) -> None:
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
def test_an_array_that_does_not_fit_never_reaches_the_library(
    twice: Callable[..., None], wrong: object
) -> None:
    right = np.zeros(4, np.int32)
    with pytest.raises(ctypes.ArgumentError):
        twice(wrong, 4, right)
    right.flags.writeable = False
    with pytest.raises(ctypes.ArgumentError):
        twice(np.zeros(4, np.int32), 4, right)


def test_only_what_changed_is_compiled_again(root: Path, written: Callable[[], list[str]]) -> None:
    build(root / "out", root=root)
    assert written() == []
    (root / "src" / "other.cpp").write_text("int other() { return 111; }\n")
    build(root / "out", root=root)
    assert written() == ["abi", "libgrace_cpu", "other"]  # abi.cpp holds the digest
    (root / "src" / "new.cpp").write_text("int fresh() { return 1; }\n")
    build(root / "out", root=root)
    assert written() == ["abi", "libgrace_cpu", "new"]
    assert len(list((root / "out" / CPU.objects).iterdir())) == 3


def test_a_damaged_record_means_a_new_library(root: Path, written: Callable[[], list[str]]) -> None:
    for record in ("", "[]", "{}", json.dumps({"digest": "0"})):
        (root / "out" / CPU.record).write_text(record)
        build(root / "out", root=root)
        assert written() == ["libgrace_cpu"]


@pytest.mark.parametrize("change", ["source", "header", "new file", "renamed"])
def test_a_library_older_than_its_sources_is_refused(root: Path, change: str) -> None:
    source = root / "src" / "other.cpp"
    match change:
        case "source":
            source.write_text("int other();\n")
        case "header":
            (root / "include" / "grace" / "twice.h").write_text("#define TWO 3\n")
        case "new file":
            (root / "src" / "new.cpp").touch()
        case _:
            source.rename(root / "src" / "z.cpp")
    with pytest.raises(NativeError, match=r"older than its sources: run `python -m .*build`$"):
        open_library(root / "out" / LIBRARY, source_digest(root))


def test_a_failed_compilation_shows_the_compiler_s_error_and_keeps_the_old_library(
    root: Path,
) -> None:
    library = root / "out" / LIBRARY
    before = library.read_bytes()
    (root / "src" / "other.cpp").write_text("int other() { int unused; return 1; }\n")
    with pytest.raises(NativeError, match=r"(?s)the C\+\+ compiler failed.*unused"):
        build(root / "out", root=root)
    assert library.read_bytes() == before
    assert not list((root / "out").rglob("*.partial"))


def test_what_a_build_lacks_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without sources cannot be built, but its library can be used."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeError, match=r"no C\+\+ compiler found .* install one .*: g\+\+;"):
        build(root / "out", root=root)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(NativeError, match=r"^CXX=no-such-compiler -m64: no such compiler"):
        build(root / "out", root=root)
    shutil.rmtree(root / "src")
    assert source_digest(root) is None
    open_library(root / "out" / LIBRARY, source_digest(root))
    with pytest.raises(NativeError, match="no C\\+\\+ sources here"):
        build(root / "out", root=root)


def test_a_source_that_changes_during_the_build_fails_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = root / "changing-compiler"
    source = root / "src" / "other.cpp"
    compiler.write_text(f'#!/bin/sh\ng++ "$@" && echo "int other();" > {source}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    source.write_text("int other() { return 5; }\n")
    with pytest.raises(NativeError, match="changed during their build: run it again"):
        build(root / "new", root=root)
    assert not (root / "new" / LIBRARY).exists()


def test_a_bare_build_leaves_only_the_library_and_its_record(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--bare", "--out", str(root / "new")], root) == 0
    library = root / "new" / LIBRARY
    assert capsys.readouterr().out == f"the native library is current: {library}\n"
    left = {file.name for file in (root / "new").iterdir()}
    assert left == {LIBRARY, CPU.record}


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(root: Path) -> None:
    (root / "_build").write_text("a file is in the way of the folder")
    remedy = r"give another folder with --out, and name its library in GRACE_NATIVE_LIBRARY"
    with pytest.raises(NativeError, match=rf"_build: cannot be written \(.*\): {remedy}"):
        build(root=root)
