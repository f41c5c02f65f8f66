"""Compiles a shared library from the package's sources, unless it is already current.

    python -m grace.native.build [--cuda | --sanitize] [--out DIR]

There are two, each a `Target`: `CPU` from native/src, and on demand `CUDA` from native/cuda.
A library contains the digest of its sources, headers and flags. The loader compares it with the
files on disk, so a stale library is an error and not a wrong answer. A text next to the library
says how it was built. Objects are kept by content: only what changed is compiled again.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path

from grace.configs.errors import NativeError

ROOT = Path(__file__).resolve().parent
BUILD_DIR = ROOT / "_build"

_MACHINE_FLAGS = {"x86_64": ("-march=x86-64-v2",)}  # any x86 server since 2009
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"),
    *("-fvisibility=hidden", *_MACHINE_FLAGS.get(platform.machine(), ())),
)
_SANITIZE_FLAGS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-fno-omit-frame-pointer", "-g"),
)
_NVCC_FLAGS = (
    *("-std=c++17", "-O3", "-Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden"),
    "-Werror=all-warnings",
)
LEAST_CAPABILITY = (8, 0)
"""The least compute capability of a GPU: Ampere's, the oldest that the portable code supports."""

FP8_CAPABILITY = (9, 0)
"""The compute capability of Hopper. No other GPU, not even a newer one, has its instructions."""

ARCHITECTURES = ("80", "86", "89", "90a", "100", "120")
"""GPUs whose code a wheel has. Code for 10.0 also runs on 10.3, and so on; "a" binds to 9.0."""


def code_flags(*architectures: str) -> tuple[str, ...]:
    """Return nvcc's flags for the code of GPUs, and for portable code, which a driver compiles."""
    own = (f"-gencode=arch=compute_{each},code=sm_{each}" for each in architectures)
    return (*own, "-gencode=arch=compute_80,code=compute_80")


def find_compiler() -> tuple[str, ...]:
    return _find(
        "CXX",
        ("g++", "c++", "clang++"),
        "no C++ compiler found (g++, c++, clang++): install one (Debian and Ubuntu: g++; Fedora:"
        " gcc-c++; macOS: xcode-select --install) or set CXX",
    )


def find_nvcc() -> tuple[str, ...]:
    """Return the command of NVCC, or the first nvcc in PATH, CUDA_HOME or this environment."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    wheels = sorted(Path(get_path("purelib")).glob("nvidia/cu*/bin/nvcc"), reverse=True)
    return _find(
        "NVCC",
        ("nvcc", str(home / "bin" / "nvcc"), *map(str, wheels)),
        "no nvcc found: install the CUDA toolkit, or pip install nvidia-cuda-nvcc, "
        "or set NVCC or CUDA_HOME",
    )


def _find(variable: str, names: Iterable[str], missing: str) -> tuple[str, ...]:
    """Return the command in an environment variable, or the first of the names that is there."""
    commands: list[tuple[str, ...]] = [(name,) for name in names]
    if chosen := os.environ.get(variable):
        commands = [tuple(shlex.split(chosen))]
        missing = (
            f"{variable}={chosen}: no such compiler; unset {variable} or name an installed one"
        )
    for command in commands:
        if shutil.which(command[0]):
            return command
    raise NativeError(missing)


@dataclass(frozen=True, slots=True)
class Target:
    """A library NAME.so: its sources and headers below the root, and how to compile them."""

    name: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    flags: tuple[str, ...]
    find_compiler: Callable[[], tuple[str, ...]]
    command: str  # builds the library
    variable: str  # the environment variable that names another library to load
    link_flags: tuple[str, ...] = ()
    code: tuple[str, ...] = ()  # flags for the GPUs of a developer's build
    all_code: tuple[str, ...] = ()  # flags for those of a bare build

    @property
    def library(self) -> str:
        return f"{self.name}.so"

    @property
    def objects(self) -> str:
        return f"{self.name}_objects"


CPU = Target(
    name="libgrace_cpu",
    sources=("src/*.cpp", "src/forms/*.cpp"),
    headers=("include/**/*.h",),
    flags=_FLAGS,
    find_compiler=find_compiler,
    command="python -m grace.native.build",
    variable="GRACE_NATIVE_LIBRARY",
)
CUDA = Target(
    name="libgrace_cuda",
    sources=("cuda/*.cu", "cuda/hopper/*.cu", "src/abi.cpp"),
    headers=("include/**/*.h", "cuda/**/*.cuh"),
    flags=_NVCC_FLAGS,
    find_compiler=find_nvcc,
    command="python -m grace.native.build --cuda",
    variable="GRACE_CUDA_LIBRARY",
    link_flags=("-cudart=static",),  # so that torch's CUDA libraries do not matter
    code=code_flags("90a"),
    all_code=code_flags(*ARCHITECTURES),
)


def source_digest(root: Path = ROOT, target: Target = CPU) -> str | None:
    """Return the digest of sources, headers and flags, without code; None without sources."""
    sources = _files(root, target.sources)
    if not sources:
        return None
    digest = hashlib.sha256(" ".join(target.flags).encode())
    for file in [*sources, *_files(root, target.headers)]:
        content = file.read_bytes()
        digest.update(f"\n{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def _record_of(library: Path) -> str:
    """Return how a library was built; nothing if that is unknown."""
    try:
        return library.with_suffix(".txt").read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def build(
    out: Path | None = None,
    *,
    sanitize: bool = False,
    bare: bool = False,
    root: Path = ROOT,
    target: Target = CPU,
) -> Path:
    """Make the library in `out` (default: the package) current; a `bare` one is for all GPUs."""
    digest = source_digest(root, target)
    if digest is None:
        raise NativeError(f"{root / 'src'}: no C++ sources here; build from a source checkout")
    out = out or root / BUILD_DIR.name
    code = target.all_code if bare else target.code
    flags = (*target.flags, *code, *(_SANITIZE_FLAGS if sanitize else ()))
    compiler = target.find_compiler()
    command, made_by = [*compiler, *flags], _compiler_version(compiler)
    record = f"sources {digest}; {made_by}; {' '.join(flags)}"  # equal only for equal libraries
    library = out / target.library
    try:
        if library.is_file() and not os.access(out, os.W_OK) and _record_of(library) == record:
            return library
        out.mkdir(parents=True, exist_ok=True)
        (out / ".lock").touch()
    except OSError as error:
        remedy = f"give another folder with --out, and name its library in {target.variable}"
        raise NativeError(f"{out}: cannot be written ({error.strerror}): {remedy}") from None
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds would delete each other's objects
        if library.is_file() and _record_of(library) == record:
            return library
        objects = _compile_all(command, made_by, digest, root, out / target.objects, target)
        if source_digest(root, target) != digest:
            shutil.rmtree(out / target.objects)
            raise NativeError("the C++ sources changed during their build: run it again")
        _run_into(library, [*command, *target.link_flags, "-shared", *map(str, objects)])
        library.with_suffix(".txt").write_text(record)
    return library


def code_for(capability: tuple[int, int], library: Path) -> str | None:
    """Return the newest code of a library that a GPU runs: `sm_89`; None: the portable code."""
    found = None
    for code, major, minor, bound in re.findall(r"code=(sm_(\d+)(\d)(a?))", _record_of(library)):
        older = int(major) == capability[0] and int(minor) < capability[1] and not bound
        if older or (int(major), int(minor)) == capability:
            found = code
    return found


def _files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return the files of all patterns; none if the first pattern matches no file."""
    found = [sorted(root.glob(pattern)) for pattern in patterns]
    return [file for files in found for file in files] if found[0] else []


def _compiler_version(compiler: tuple[str, ...]) -> str:
    """Return the command and its version: another compiler makes another library."""
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or [""]
    version = next((line for line in lines if "release" in line), lines[0])
    return f"{shlex.join(compiler)}: {version}"


def _compile_all(
    command: list[str], made_by: str, digest: str, root: Path, directory: Path, target: Target
) -> list[Path]:
    """Return the objects of all sources. `made_by` is the compiler, and `command` runs it."""
    directory.mkdir(exist_ok=True)
    headers = b"".join(file.read_bytes() for file in _files(root, target.headers))
    objects: dict[Path, list[str]] = {}
    for source in _files(root, target.sources):
        text = source.read_bytes()
        defines = [f'-DGRACE_SOURCE_DIGEST="{digest}"'] if source.name == "abi.cpp" else []
        compiles = [*command, *defines, f"-I{root / 'include'}", "-c", str(source)]
        words = [made_by.encode(), *map(str.encode, compiles), headers, text]
        key = hashlib.sha256(b"\0".join(words)).hexdigest()[:16]
        objects[directory / f"{source.stem}.{key}.o"] = compiles
    missing = [made for made in objects if not made.is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda made: _run_into(made, objects[made]), missing))
    for old in set(directory.iterdir()) - objects.keys():
        old.unlink()
    return list(objects)


def _run_into(result: Path, command: list[str]) -> None:
    """Run a compiler command that writes `result`; a failure leaves no partial file."""
    partial = result.with_name(f"{result.name}.{os.getpid()}.partial")
    done = subprocess.run(
        [*command, "-o", str(partial)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        partial.unlink(missing_ok=True)
        raise NativeError(
            f"the C++ compiler failed (GCC >= 11, Clang >= 12 or nvcc >= 12.4 is needed):"
            f" {shlex.join(command)}\n{done.stderr.strip()}"
        )
    partial.replace(result)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m grace.native.build", description=__doc__)
    parser.add_argument("--out", type=Path, help="the library's folder; grace looks elsewhere")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_true", help="the GPU kernels, with nvcc")
    kind.add_argument("--sanitize", action="store_true", help="address and undefined behaviour")
    parser.add_argument("--bare", action="store_true", help="for wheels: all GPUs, keep no objects")
    chosen = parser.parse_args(arguments)
    target = CUDA if chosen.cuda else CPU
    out = chosen.out or root / BUILD_DIR.name / ("sanitized" if chosen.sanitize else "")
    try:
        library = build(out, sanitize=chosen.sanitize, bare=chosen.bare, root=root, target=target)
    except NativeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if chosen.bare:
        shutil.rmtree(out / target.objects, ignore_errors=True)
        (out / ".lock").unlink(missing_ok=True)
    print(f"the native library is current: {library}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
