"""The library of GPU kernels: it compiles for Hopper without spills, and nvcc is found or named."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grace.configs.errors import NativeError
from grace.native.build import BUILD_DIR, CUDA, ROOT, source_digest
from grace.native.loader import open_library
from grace.native.nvcc import NVCC_FLAGS, find_nvcc

SOURCES = sorted((ROOT / "cuda").rglob("*.cu"))
ONE_ADDRESS = 8
SPILLS = {"fp8_products.cu": ONE_ADDRESS}
"""Bytes that a kernel may spill: next to 128 sums of a thread, ptxas keeps no address of a tile."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The report of ptxas about each source, compiled for Hopper."""
    try:
        nvcc = find_nvcc()
    except NativeError as error:
        pytest.skip(f"no nvcc here: {error}")
    folder = tmp_path_factory.mktemp("cubin")
    general = [flag for flag in NVCC_FLAGS if not flag.startswith("-gencode")]

    def compiled(source: Path) -> str:
        command = [
            *(*nvcc, *general, "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas=-v"),
            *(f"-I{ROOT / 'include'}", "-cubin", "-o", str(folder / f"{source.stem}.cubin")),
        ]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    with ThreadPoolExecutor(2) as pool:
        return dict(zip([s.name for s in SOURCES], pool.map(compiled, SOURCES), strict=True))


@pytest.mark.compile
@pytest.mark.subprocess
def test_no_kernel_spills_on_hopper(reports: dict[str, str]) -> None:
    for name, report in reports.items():
        kernels = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", report)
        assert kernels, name
        frames = {int(frame) for frame, _, _ in kernels}
        assert max(frames) <= SPILLS.get(name, 0), name
        assert max(int(stored) for _, stored, _ in kernels) <= SPILLS.get(name, 0), name


def test_an_nvcc_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC", "no-such-nvcc -v")
    with pytest.raises(NativeError, match=r"^NVCC=no-such-nvcc -v: no such compiler; unset NVCC"):
        find_nvcc()


def test_nvcc_is_found_in_cuda_home_and_its_absence_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("grace.native.nvcc.get_path", lambda _: str(tmp_path / "site"))
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
