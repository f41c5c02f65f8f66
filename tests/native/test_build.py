"""The build: what makes a library current, what makes it stale, and what a failure says."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from ctypes import ArgumentError
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import NativeError
from grace.native.build import (
    ARCHITECTURES,
    BUILD_DIR,
    CPU,
    CUDA,
    ROOT,
    build,
    find_nvcc,
    main,
    source_digest,
)
from grace.native.loader import declare, open_library

pytestmark = pytest.mark.subprocess  # most of them run the compiler

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
LIBRARY, RECORD = CPU.library, f"{CPU.name}.txt"
SPILLS = {
    ("fp8_products.cu", "90a"): 8,  # next to 128 sums of a thread, ptxas keeps no address of a tile
    # 64 registers let as many warps run as on Hopper
    **{("admit_children.cu", gpu): 212 for gpu in ("80", "86", "89")},
}
"""The most bytes of a kernel's stack frame or spills, by source and GPU; elsewhere none."""


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


def use_compiler(root: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = root / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


def test_a_declared_function_fills_arrays_that_fit_and_raises_the_librarys_error(
    built: Path,
) -> None:
    digest = source_digest(built)
    library = open_library(built / "out" / LIBRARY, digest)
    record = (built / "out" / RECORD).read_text()
    assert record.startswith(f"sources {digest}; ")
    assert " -O3 " in record
    twice = declare("twice(int32[], int32, out int32[])", library=lambda: library)
    out = np.full(4, -1, np.int32)
    twice(np.arange(4, dtype=np.int32), 4, out)
    assert out.tolist() == [0, 2, 4, 6]
    with pytest.raises(NativeError, match=r"^twice: it was odd$"):
        twice(np.arange(3, dtype=np.int32), 3, out)
    read_only = out.copy()
    read_only.flags.writeable = False
    strided, flat = np.arange(8, dtype=np.int32)[::2], np.zeros((2, 2), np.int32)
    for wrong in (np.arange(4, dtype=np.int64), strided, flat, [1, 2, 3, 4], None):
        with pytest.raises(ArgumentError):
            twice(wrong, 4, out)
    with pytest.raises(ArgumentError):
        twice(out, 4, read_only)


def test_only_what_changed_is_compiled_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = root / "log"
    script = f'for file; do :; done\n[ "$file" = --version ] || basename "$file" >> {log}\n'
    use_compiler(root, script + 'exec g++ "$@"', monkeypatch)

    def written() -> list[str]:
        """Build, and return the files that the compiler wrote."""
        log.write_text("")
        build(root / "out", root=root)
        return sorted(name.partition(".")[0] for name in log.read_text().splitlines())

    whole = ["abi", "libgrace_cpu", "other"]
    assert written() == whole  # another compiler makes another library
    assert written() == []
    (root / "src" / "other.cpp").write_text("int other() { return 111; }\n")
    assert written() == whole  # abi.cpp holds the digest
    (root / "src" / "new.cpp").write_text("int fresh() { return 1; }\n")
    assert written() == ["abi", "libgrace_cpu", "new"]
    assert len(list((root / "out" / CPU.objects).iterdir())) == 3
    (root / "out" / RECORD).write_bytes(b"\xff")
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


def test_a_failed_compilation_shows_the_compilers_error_and_keeps_the_old_library(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, source = root / "out" / LIBRARY, root / "src" / "other.cpp"
    before = library.read_bytes()
    source.write_text("int other() { int unused; return 1; }\n")
    with pytest.raises(NativeError, match=r"(?s)the C\+\+ compiler failed.*unused"):
        build(root / "out", root=root)
    source.write_text("int other() { return 5; }\n")
    changing = f'g++ "$@" && echo "int other();" > {source}'
    use_compiler(root, changing, monkeypatch)
    with pytest.raises(NativeError, match="changed during their build: run it again"):
        build(root / "out", root=root)
    assert library.read_bytes() == before
    assert not list((root / "out").rglob("*.partial"))


def test_what_a_build_lacks_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without sources cannot be built, but its library can be used."""
    (root / "_build").write_text("a file is in the way of the folder")
    remedy = r"give another folder with --out, and name its library in GRACE_NATIVE_LIBRARY"
    with pytest.raises(NativeError, match=rf"_build: cannot be written \(.*\): {remedy}"):
        build(root=root)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeError, match=r"no C\+\+ compiler found .* install one .*: g\+\+;"):
        build(root / "out", root=root)
    for variable, find in (("CXX", CPU.find_compiler), ("NVCC", find_nvcc)):
        monkeypatch.setenv(variable, "no-such-compiler -m64")
        with pytest.raises(NativeError, match=rf"^{variable}=no-such-compiler -m64: no such comp"):
            find()
    shutil.rmtree(root / "src")
    assert source_digest(root) is None
    open_library(root / "out" / LIBRARY, source_digest(root))
    with pytest.raises(NativeError, match="no C\\+\\+ sources here"):
        build(root / "out", root=root)


def test_a_bare_build_leaves_only_the_library_and_its_record(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--bare", "--out", str(root / "new")], root) == 0
    library = root / "new" / LIBRARY
    assert capsys.readouterr().out == f"the native library is current: {library}\n"
    left = {file.name for file in (root / "new").iterdir()}
    assert left == {LIBRARY, RECORD}


def test_nvcc_is_found_in_cuda_home_and_its_absence_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("grace.native.build.get_path", lambda _: str(tmp_path / "site"))
    with pytest.raises(NativeError, match=r"no nvcc found: .* pip install nvidia-cuda-nvcc"):
        find_nvcc()
    for place in (tmp_path / "site/nvidia/cu13/bin/nvcc", tmp_path / "bin/nvcc"):
        place.parent.mkdir(parents=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
        assert find_nvcc() == (str(place),)


def test_a_library_of_the_cpu_is_not_taken_for_the_gpus(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match=r"is missing: run `python -m .*build --cuda`$"):
        open_library(tmp_path / "none.so", source_digest(target=CUDA), CUDA)
    with pytest.raises(NativeError, match=r"older than its sources: run `python -m .* --cuda`$"):
        open_library(BUILD_DIR / "libgrace_cpu.so", source_digest(target=CUDA), CUDA)


@pytest.mark.compile
def test_no_kernel_spills_on_any_gpu(tmp_path: Path) -> None:
    try:
        nvcc = find_nvcc()
    except NativeError as error:
        pytest.skip(f"no nvcc here: {error}")

    def report(source: Path) -> str:
        """Return what ptxas says about a source."""
        files = ("-c", str(source), "-o", str(tmp_path / f"{source.stem}.o"))
        command = [*nvcc, *CUDA.flags, *CUDA.all_code, "-Xptxas=-v", f"-I{ROOT / 'include'}"]
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    sources = sorted((ROOT / "cuda").rglob("*.cu"))
    with ThreadPoolExecutor(2) as pool:
        for source, said in zip(sources, pool.map(report, sources), strict=True):
            of_gpus = re.findall(
                r"for 'sm_(\w+)'(?s:.*?)(\d+) bytes stack frame, (\d+) bytes spill stores", said
            )
            assert {gpu for gpu, *_ in of_gpus} == {*ARCHITECTURES}, source.name
            for gpu, *sizes in of_gpus:
                allowed = SPILLS.get((source.name, gpu), 0)
                assert max(map(int, sizes)) <= allowed, (source.name, gpu)
