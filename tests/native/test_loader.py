"""The loader: which file is opened, and what is refused."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import NativeError
from grace.native.build import BUILD_DIR, source_digest
from grace.native.loader import (
    declare,
    library_path,
    load_library,
    load_library_with_lock,
    open_library,
)


def test_the_library_in_use_is_built_from_the_sources_on_disk() -> None:
    assert load_library().grace_source_digest().decode() == source_digest()


def test_the_environment_may_name_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRACE_NATIVE_LIBRARY", raising=False)
    assert library_path() == BUILD_DIR / "libgrace_cpu.so"
    monkeypatch.setenv("GRACE_NATIVE_LIBRARY", "elsewhere/lib.so")
    assert library_path() == Path("elsewhere/lib.so")


def test_a_file_that_is_missing_or_no_library_of_ours_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "libgrace_cpu.so"
    with pytest.raises(NativeError, match=r"libgrace_cpu\.so: native library is missing: run `py"):
        open_library(file, None)
    file.write_bytes(b"\x7fELF, or so it says" * 63)
    with pytest.raises(NativeError, match=r"libgrace_cpu\.so: not our native library"):
        open_library(file, None)
    mapped = [Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines()]
    libc = next(path for path in mapped if path.name.startswith("libc.so"))
    with pytest.raises(NativeError, match=r"not our native library .*grace_source_digest"):
        open_library(libc, None)


def test_declaring_a_function_opens_nothing_until_it_is_called() -> None:
    absent = declare("grace_no_such_function(int32)")
    with pytest.raises(NativeError, match=r"^grace_no_such_function: no such native function: run"):
        absent(1)


@pytest.mark.parametrize("library", [load_library, load_library_with_lock])
def test_an_error_contains_the_function_s_own_text(library: Callable[[], ctypes.CDLL]) -> None:
    order = declare("grace_order_by_id(int64, int64[], int32, out int32[])", library=library)
    with pytest.raises(NativeError, match=r"^grace_order_by_id: order_by_id: a negative id"):
        order(1, np.array([-1]), 1, np.zeros(1, np.int32))


def test_short_calls_may_keep_the_interpreter_lock() -> None:
    quick = load_library_with_lock()
    assert isinstance(quick, ctypes.PyDLL)
    assert quick._handle == load_library()._handle
    call = declare("grace_order_by_sid_of_nothing", library=load_library_with_lock)
    with pytest.raises(NativeError, match=r"no such native function: run `python -m .*build`$"):
        call()
