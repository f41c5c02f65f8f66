"""Opens the native library once and turns its functions into typed Python ones.

    _build_trie = declare("grace_build_trie(uint16[,], int64, out int32[])")
    _build_trie(tokens, len(tokens), node_offsets)     # raises NativeError on a failure

Arguments are numbers, `pointer`, `text` (bytes), `texts`, and arrays, which must be C-contiguous
and have the stated dtype and rank. `out` marks an array that the function writes.

The environment variables GRACE_NATIVE_LIBRARY and GRACE_CUDA_LIBRARY name another build of the same
sources, as in `make sanitize`. Only this module reads them. Calls release the interpreter lock,
except those of `load_library_with_lock`.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from grace.configs.errors import NativeError
from grace.native.build import BUILD_DIR, CPU, CUDA, Target, source_digest

_POINTERS: dict[str, Any] = {
    "pointer": ctypes.c_void_p,
    "text": ctypes.c_char_p,
    "texts": ctypes.POINTER(ctypes.c_char_p),
}


def library_path(target: Target = CPU) -> Path:
    chosen = os.environ.get(target.variable)
    return Path(chosen) if chosen else BUILD_DIR / target.library


@cache
def load_library() -> ctypes.CDLL:
    """Open the library, if it was built from the sources on disk or there are none."""
    return open_library(library_path(), source_digest())


@cache
def load_library_with_lock() -> ctypes.CDLL:
    """Open the same library for calls of microseconds, which keep the interpreter lock."""
    load_library()  # checked
    return _typed(ctypes.PyDLL(str(library_path())))


@cache
def load_cuda_library() -> ctypes.CDLL:
    """Open the library of GPU kernels with the same check. This starts nothing on a GPU."""
    return open_library(library_path(CUDA), source_digest(target=CUDA), CUDA)


def open_library(path: Path, digest: str | None, target: Target = CPU) -> ctypes.CDLL:
    run = f"run `{target.command}`"
    if not path.is_file():
        raise NativeError(f"{path}: native library is missing: {run}")
    try:
        library = _typed(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise NativeError(f"{path}: not our native library ({error}): {run}") from None
    built_from = library.grace_source_digest().decode()
    if digest is not None and built_from != digest:
        raise NativeError(f"{path}: native library is older than its sources: {run}")
    return library


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of every library; ctypes needs this for each opening."""
    library.grace_source_digest.restype = ctypes.c_char_p
    library.grace_last_error.restype = ctypes.c_char_p
    return library


def declare(
    signature: str, library: Callable[[], ctypes.CDLL] = load_library
) -> Callable[..., None]:
    """Return a native function that raises its errors. Its library opens at the first call."""
    name, _, arguments = signature.removesuffix(")").partition("(")
    argtypes = [*map(_argument, filter(None, arguments.split(", ")))]

    @cache
    def bound(opened: ctypes.CDLL) -> Callable[..., int]:
        try:
            function = getattr(opened, name)
        except AttributeError:
            raise NativeError(f"{name}: no such native function: run `{CPU.command}`") from None
        function.argtypes = argtypes
        function.restype = ctypes.c_int32
        return function  # type: ignore[no-any-return]

    def call(*arguments: Any) -> None:
        opened = library()
        status = bound(opened)(*arguments)
        if status:
            text = opened.grace_last_error().decode(errors="replace")
            raise NativeError(f"{name}: {text or f'status {status} without a reason'}")

    call.__name__ = call.__qualname__ = name
    return call


def _argument(stated: str) -> Any:
    dtype, _, rank = stated.removeprefix("out ").partition("[")
    if not rank:
        return _POINTERS.get(dtype) or getattr(ctypes, f"c_{dtype}")
    return _ArrayArgument(np.dtype(dtype), rank.count(",") + 1, stated.startswith("out "))


declare_cuda = partial(declare, library=load_cuda_library)
"""Return a function of the library of GPU kernels, as `declare` does."""


def address_of(
    name: str, array: np.ndarray[Any, Any] | None, dtype: type[np.generic], shape: tuple[int, ...]
) -> int | None:
    """Return where C++ finds an array that may be absent; the caller keeps it alive."""
    if array is None:
        return None
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous {dtype.__name__} {list(shape)}, got {array.dtype} "
            f"{list(array.shape)}"
        )
    return array.ctypes.data


class _ArrayArgument:
    """A faster np.ctypeslib.ndpointer: a third of its time, for the dozens of arrays of a batch."""

    def __init__(self, dtype: np.dtype[Any], ndim: int, written: bool) -> None:
        self._dtype, self._ndim = dtype, ndim
        flags = ("C_CONTIGUOUS", "ALIGNED", *(("WRITEABLE",) if written else ()))
        self._slow = np.ctypeslib.ndpointer(dtype, ndim, flags=flags)

    def from_param(self, given: Any) -> Any:
        """Convert an argument for ctypes; the result keeps the array alive until the call ends."""
        if (
            type(given) is np.ndarray
            and given.dtype == self._dtype
            and given.ndim == self._ndim
            and given.flags.carray  # contiguous, aligned and writeable
            and given.size  # a buffer without bytes has no address
        ):
            return ctypes.byref(ctypes.c_char.from_buffer(cast("Any", given)))
        return self._slow.from_param(given)
