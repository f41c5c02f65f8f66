"""The CUDA kernels compiled for the host, and the operations of the GPU with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from grace.native import loader
from grace.native.build import (
    BUILD_DIR,
    CPU,
    CUDA,
    ROOT,
    Target,
    build,
    find_compiler,
    source_digest,
)

# native/tests/emulated lists what this cannot test.
# Without contraction of a * b + c: the kernels name the products that must be rounded. Without the
# checks that Ubuntu's compiler adds: they end a program that jumps from stack to stack.
_FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE"),
    *(f"-I{ROOT / 'tests' / 'emulated'}", "-xc++"),
)
EMULATED = replace(
    CUDA,
    name="libgrace_cuda_emulated",
    sources=("cuda/*.cu", "src/abi.cpp"),  # Hopper's own instructions have no emulation
    headers=(*CUDA.headers, "tests/emulated/*.h"),
    flags=_FLAGS,
    find_compiler=find_compiler,
    link_flags=("-xnone",),
    code=(),  # of the host
)
PORTABLE = replace(
    EMULATED,
    sources=("cuda/select_beams.cu", "src/abi.cpp"),
    flags=(*_FLAGS, "-D__CUDA_ARCH__=800"),
)
"""The portable code of the selection: GPUs before Hopper run it."""


@cache
def compiled(target: Target) -> tuple[Path, str | None]:
    """Return the library and the digest of its sources."""
    folder = "emulated" if target is EMULATED else "emulated_portable"
    return build(BUILD_DIR / folder, target=target), source_digest(target=target)


@contextmanager
def emulated_cuda(target: Target = EMULATED) -> Iterator[None]:
    """Within it, the operations of the GPU work on tensors of the CPU."""
    library, digest = compiled(target)

    def digest_of(asked: Target = CPU) -> str | None:
        return digest if asked is CUDA else source_digest(target=asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRACE_CUDA_LIBRARY", str(library))
        patch.setattr(loader, "source_digest", lambda target=CPU: digest_of(target))
        loader.load_cuda_library.cache_clear()
        yield
    loader.load_cuda_library.cache_clear()
