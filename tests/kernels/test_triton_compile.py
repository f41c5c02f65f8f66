"""What is launched at the paper's shapes compiles for sm_90, with the loads that make it fast."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.decode import (
    activate_triton,
    cross_attention_triton,
    rearrange_triton,
    row_factors_triton,
    self_attention_triton,
)
from support.triton_compile import SHARED_MEMORY, Compiled, compiled_launch

WIDE_LOAD = r"ld\.global[.\w:]*\.v4\.b32"
WIDE_STORE = r"st\.global[.\w:]*\.v4\.b32"
NARROW_HALF = r"(ld|st)\.global[.\w:]*\.b16\b"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def compiled(patch: pytest.MonkeyPatch, module: ModuleType, *arguments: Any) -> Compiled:
    body = getattr(module, module.__name__.partition(".")[2])
    return compiled_launch(patch, module, lambda: body(*arguments))


def assert_fits(made: Compiled) -> None:
    assert made.resources["STACK"] == 0
    assert made.resources["LOCAL"] == 0
    assert made.shared_memory <= SHARED_MEMORY
    assert made.threads * made.resources["REG"] <= 65_536


@pytest.mark.parametrize(("step", "scaled"), [(0, True), (1, False), (3, True)], ids=str)
def test_self_attention_reads_16_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch, step: int, scaled: bool
) -> None:
    table, factors = meta(16384, 4, dtype=torch.int32), meta(40960, dtype=torch.float32)
    made = compiled(
        monkeypatch,
        self_attention_triton,
        *(meta(40960, 3, 16, 128), table, step, meta(16, 4), 0.1, factors if scaled else None),
    )
    assert_fits(made)
    assert made.count(NARROW_HALF) <= step + 1  # the biases
    elements = 16384 * 2048 // (made.grid[0] * made.grid[1] * made.threads)
    assert made.count(WIDE_LOAD) == (1 + 2 * (step + 1)) * elements // 8
    assert made.count(WIDE_STORE) == elements // 8


@pytest.mark.parametrize(("beams", "gathered"), [(1, False), (1024, False), (1024, True)], ids=str)
def test_cross_attention_fits_two_programs_on_an_sm(
    monkeypatch: pytest.MonkeyPatch, beams: int, gathered: bool
) -> None:
    rows = 16 * beams
    keys, values = (meta(16, 128, 16, 128).transpose(1, 2) for _ in "kv")
    made = compiled(
        monkeypatch,
        cross_attention_triton,
        *(meta(rows, 2048), keys, values, meta(16, 128, dtype=torch.bool), 0.1),
        *(meta(rows, dtype=torch.float32), meta(rows, dtype=torch.int32) if gathered else None),
    )
    assert_fits(made)
    assert 2 * (made.shared_memory + 1024) <= SHARED_MEMORY + 1024
    assert 2 * made.threads * made.resources["REG"] <= 65_536
    assert made.count(NARROW_HALF) == 0
    assert made.count(WIDE_STORE) >= 1
    if beams > 1:
        assert made.count("wgmma.mma_async") >= 16


def test_a_context_too_long_for_one_tile_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(
        monkeypatch,
        cross_attention_triton,
        *(meta(1600, 2048), *(meta(16, 16, 500, 128) for _ in "kv")),
        *(meta(16, 500, dtype=torch.bool), 0.1),
    )
    assert_fits(made)
    assert made.count("wgmma.mma_async") >= 8


def test_row_factors_read_16_bytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(monkeypatch, row_factors_triton, meta(16384, 2048), 1e-6)
    assert_fits(made)
    assert made.count(NARROW_HALF) == 0
    assert made.count(WIDE_LOAD) == 16384 * 2048 // 8 // (made.grid[0] * made.threads)


@pytest.mark.parametrize("ffn", ["relu", "gated_gelu"])
def test_activation_reads_and_writes_16_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch, ffn: str
) -> None:
    wide = 512 if ffn == "relu" else 1024
    scale = meta(16384, dtype=torch.float32)
    made = compiled(monkeypatch, activate_triton, meta(16384, wide), scale, ffn)
    assert_fits(made)
    assert made.count(NARROW_HALF) == 0
    per_thread = 16384 * 512 // 8 // (made.grid[0] * made.grid[1] * made.threads)
    assert made.count(WIDE_LOAD) == per_thread * wide // 512
    assert made.count(WIDE_STORE) == per_thread


def test_rearrangement_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    table, parents = meta(16384, 4, dtype=torch.int32), meta(16, 1024, dtype=torch.int32)
    assert_fits(compiled(monkeypatch, rearrange_triton, table, parents, 2))
