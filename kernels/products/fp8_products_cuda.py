"""Products of rounded rows on a GPU: native/cuda/hopper/fp8_products.cu, and cuBLASLt's.

Our kernel also adds to the residual, sums the squares of its rows, and rounds them. A second, small
kernel then computes the row factors from a few sums per row. cuBLASLt computes products that
nothing follows: it takes 6 % less energy than our kernel did, for the same bits.
"""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from enum import IntEnum
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import (
    address,
    current_stream,
    fields,
    require_contiguous,
    require_tensor,
    sizes_of,
)
from grace.kernels.products import fp8_products as fp8
from grace.kernels.triton_parts import await_kernel_before, early_launch
from grace.native.loader import declare_cuda

_TILE_COLUMNS = 128  # whose squares the product sums
_FACTOR_ROWS = 256
_JOINED_ROWS, _JOINED_PARTS = 16, 256  # of a program; that it reads at a time
_HEADROOM, _CLIPPED_COLUMNS = tl.constexpr(fp8.HEADROOM), tl.constexpr(32)
_LARGEST, _LARGEST_BITS = tl.constexpr(fp8.LARGEST), tl.constexpr(fp8.LARGEST_BITS)
_ORDERED = tl.constexpr(fp8.ORDERED)


class _Result(IntEnum):
    RESIDUAL, HIDDEN, GATED, LOG_SUMS = range(4)


class _Product(ctypes.Structure):
    """The layout of native/cuda/hopper/fp8_products.cu."""

    _fields_ = (
        *fields(c_void_p, "x weight weight_scales request_scales"),
        *fields(c_void_p, "row_factors out rounded squares log_sums"),
        *fields(c_int64, "rows outs inner beams result early counted"),
        ("times", c_float),
    )


prepare_fp8_products = declare_cuda("grace_cuda_prepare_fp8_products()")
"""Prepare the current GPU, once, before its first product and outside of any capture."""
_run = declare_cuda("grace_cuda_fp8_product(pointer, int64, int64, pointer)")


def product_cuda(rounded: Tensor, weight: fp8.RoundedWeight, out: Tensor) -> None:
    fp8.check_product(rounded, weight)
    require_tensor("out", out, torch.bfloat16, rows=len(rounded), outs=len(weight))
    if len(rounded):
        torch._scaled_mm(  # noqa: SLF001, the public function cannot write to `out`
            rounded,
            weight.rounded.t(),
            _ones(rounded.device, triton.next_power_of_2(len(rounded)))[: len(rounded)],
            weight.scales.unsqueeze(0),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
            out=out,
        )


def add_product_cuda(given: fp8.Addition) -> fp8.RoundedRows:
    given.check()
    rows, before = given.rows, given.row_factors
    count, d = rows.shape
    copy = torch.empty(rows.shape, dtype=fp8.E4M3, device=rows.device)
    squares = _launch(
        _Result.RESIDUAL,
        given.rounded,
        given.weight,
        out=rows,
        copy=copy,
        row_factors=before,
        request_scales=given.request_scales,
    )
    after, rounded_factors = torch.empty_like(before), torch.empty_like(before)
    if count:
        _factors[(triton.cdiv(count, _FACTOR_ROWS),)](
            squares,
            before,
            after,
            rounded_factors,
            copy.view(torch.uint8),
            given.clipped,
            count,
            given.eps,
            d=d,
            parts=len(squares),
            block=_FACTOR_ROWS,
            counts=given.clipped is not None,
            num_warps=4,
            **early_launch(rows.device, count),
        )
    return fp8.RoundedRows(rows, after, copy, rounded_factors)


def hidden_cuda(rows: fp8.RoundedRows, weight: fp8.RoundedWeight, ffn: str) -> Tensor:
    fp8.check_product(rows.rounded, weight)
    result = _Result.HIDDEN if ffn == "relu" else _Result.GATED
    shape = (len(rows.rounded), len(weight) // (1 if ffn == "relu" else 2))
    hidden = torch.empty(shape, dtype=fp8.E4M3, device=rows.rounded.device)
    _launch(result, rows.rounded, weight, copy=hidden, row_factors=rows.rounded_factors)
    return hidden


def log_sums_cuda(rows: fp8.RoundedRows, weight: fp8.RoundedWeight, tokens: int) -> Tensor:
    fp8.check_product(rows.rounded, weight)
    count, device = len(rows.rounded), rows.rounded.device
    shape = (len(weight) // _TILE_COLUMNS, count, 2)
    parts = torch.empty(shape, dtype=torch.float32, device=device)
    factors = rows.rounded_factors
    _launch(
        _Result.LOG_SUMS, rows.rounded, weight, row_factors=factors, log_sums=parts, counted=tokens
    )
    out = torch.empty(count, dtype=torch.float32, device=device)
    if count:
        _join_sums[(triton.cdiv(count, _JOINED_ROWS),)](
            parts,
            out,
            count,
            parts=len(parts),
            block_rows=_JOINED_ROWS,
            block_parts=_JOINED_PARTS,
            num_warps=8,
            **early_launch(device, count),
        )
    return out


def round_rows_triton(rows: Tensor, eps: float) -> fp8.RoundedRows:
    count, d = sizes_of("rows", rows, "rows d")
    require_contiguous(rows=rows)
    fp8.require_ordered("rows", d)
    row_factors = torch.empty(count, dtype=torch.float32, device=rows.device)
    rounded = torch.empty((count, d), dtype=fp8.E4M3, device=rows.device)
    if count:
        _round[(count,)](
            rows, row_factors, rounded, eps, d=d, num_warps=4, **early_launch(rows.device, count)
        )
    return fp8.RoundedRows(
        rows, row_factors, rounded, torch.full_like(row_factors, 1.0 / fp8.HEADROOM)
    )


def round_grown_triton(rows: fp8.RoundedRows, before: Tensor) -> None:
    """Do what `round_grown_reference` does. Few rows grow that much, and the others cost little."""
    require_tensor("before", before, torch.float32, rows=len(rows.rows))
    require_contiguous(rows=rows.rows, rounded=rows.rounded, before=before)
    count, d = rows.rows.shape
    if count:
        _round_grown[(count,)](
            rows.rows,
            before,
            rows.row_factors,
            rows.rounded,
            rows.rounded_factors,
            d=d,
            num_warps=4,
            **early_launch(before.device, count),
        )


CUDA_ROUNDED = fp8.RoundedOps(
    round_rows=round_rows_triton,
    product=product_cuda,
    add_product=add_product_cuda,
    round_grown=round_grown_triton,
    hidden=hidden_cuda,
    log_sums=log_sums_cuda,
)


def _launch(
    result: _Result,
    x: Tensor,
    weight: fp8.RoundedWeight,
    *,
    out: Tensor | None = None,
    copy: Tensor | None = None,
    row_factors: Tensor | None = None,
    request_scales: Tensor | None = None,
    log_sums: Tensor | None = None,
    counted: int = 0,
) -> Tensor:
    """Launch a product; return the sums of squares of its tiles' rows, [tiles, rows]."""
    (rows, inner), outs, device = x.shape, len(weight), x.device
    fp8.require_ordered("weight", outs)
    if inner % 16:
        raise ValueError(f"weight must have a multiple of 16 columns, got {inner}")
    parts = outs // _TILE_COLUMNS if result is _Result.RESIDUAL else 0
    squares = torch.empty((parts, rows), dtype=torch.float32, device=device)
    product = _Product(
        x=address("rounded", x, device, fp8.E4M3),
        weight=address("weight.rounded", weight.rounded, device, fp8.E4M3),
        weight_scales=address("weight.scales", weight.scales, device, torch.float32),
        request_scales=address("request_scales", request_scales, device, torch.float32),
        row_factors=address("row_factors", row_factors, device, torch.float32),
        out=address("out", out, device, torch.bfloat16),
        rounded=address("copy", copy, device, fp8.E4M3),
        squares=squares.data_ptr(),
        log_sums=address("log_sums", log_sums, device, torch.float32),
        counted=counted,
        rows=rows,
        outs=outs,
        inner=inner,
        beams=1 if request_scales is None else rows // len(request_scales),
        result=result,
        early=early_launch(device, rows)["early"],
        times=fp8.HEADROOM if result is _Result.RESIDUAL else 1.0,
    )
    blocks = _multiprocessors(device)
    _run(current_stream(device), blocks, ctypes.sizeof(product), ctypes.byref(product))
    return squares


@cache
def _ones(device: torch.device, rows: int) -> Tensor:
    ones = torch.ones((rows, 1), dtype=torch.float32, device=device)
    torch.cuda.current_stream(device).synchronize()  # other streams read it, too
    return ones


@cache
def _multiprocessors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@triton.jit(do_not_specialize=["rows"])
def _factors(
    p_squares: tl.tensor,
    p_before: tl.tensor,
    p_own: tl.tensor,
    p_rounded: tl.tensor,
    p_copy: tl.tensor,
    p_clipped: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    d: tl.constexpr,
    parts: tl.constexpr,
    block: tl.constexpr,
    counts: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    o_row = tl.program_id(0) * block + tl.arange(0, block)
    live = o_row < rows
    total = tl.zeros((block,), dtype=tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(p_squares + part * rows + o_row, mask=live, other=0.0)
    factor = tl.rsqrt(total / d + eps)
    before = tl.load(p_before + o_row, mask=live, other=1.0)
    tl.store(p_own + o_row, factor, mask=live)
    tl.store(p_rounded + o_row, factor / (before * _HEADROOM), mask=live)
    if counts:
        outgrown = live & _outgrew(before, factor, d)
        if tl.max(outgrown.to(tl.int32)) > 0:
            at_limit = tl.zeros((block,), dtype=tl.int32)
            for start in tl.range(0, d, _CLIPPED_COLUMNS):
                o_column = start + tl.arange(0, _CLIPPED_COLUMNS)
                p_number = p_copy + o_row.to(tl.int64)[:, None] * d + o_column[None, :]
                number = tl.load(p_number, mask=outgrown[:, None], other=0)
                at_limit += tl.sum(((number & 0x7F) == _LARGEST_BITS).to(tl.int32), axis=1)
            tl.atomic_add(p_clipped, tl.sum(at_limit).to(tl.int64))


@triton.jit
def _outgrew(before: tl.tensor, factor: tl.tensor, d: tl.constexpr) -> tl.tensor:
    scale, limit = before * _HEADROOM, factor * _LARGEST
    return scale * scale * d > limit * limit


@triton.jit(do_not_specialize=["rows"])
def _join_sums(
    p_parts: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    parts: tl.constexpr,
    block_rows: tl.constexpr,
    block_parts: tl.constexpr,
    early: tl.constexpr,
) -> None:
    """Add the sums of all parts of a row, each relative to its own largest number."""
    await_kernel_before(early)
    o_row = (tl.program_id(0) * block_rows + tl.arange(0, block_rows)).to(tl.int64)
    live = o_row < rows
    highest = tl.full((block_parts, block_rows), float("-inf"), tl.float32)
    total = tl.zeros((block_parts, block_rows), tl.float32)
    for start in tl.range(0, parts, block_parts):
        o_part = start + tl.arange(0, block_parts)
        there = (o_part < parts)[:, None] & live[None, :]
        p_part = p_parts + 2 * (o_part[:, None] * rows + o_row[None, :])
        own = tl.load(p_part, mask=there, other=float("-inf"))
        reached = tl.maximum(highest, own)
        base = tl.where(reached == float("-inf"), 0.0, reached)
        added = tl.load(p_part + 1, mask=there, other=0.0) * tl.exp(own - base)
        total = total * tl.exp(highest - base) + added
        highest = reached
    most = tl.max(highest, axis=0)
    sums = tl.sum(total * tl.exp(highest - most[None, :]), axis=0)
    tl.store(p_out + o_row, most + tl.log(sums), mask=live)


@triton.jit
def _round(
    p_rows: tl.tensor,
    p_factors: tl.tensor,
    p_rounded: tl.tensor,
    eps: tl.tensor,
    d: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    row = tl.program_id(0).to(tl.int64)
    x = _load_ordered(p_rows + row * d, d)
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / d + eps)
    tl.store(p_factors + row, factor)
    _store_rounded(p_rounded + row * d, x * (factor * _HEADROOM), d)


@triton.jit
def _round_grown(
    p_rows: tl.tensor,
    p_before: tl.tensor,
    p_factors: tl.tensor,
    p_rounded: tl.tensor,
    p_rounded_factors: tl.tensor,
    d: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(p_factors + row)
    if _outgrew(tl.load(p_before + row), factor, d):
        x = _load_ordered(p_rows + row * d, d)
        _store_rounded(p_rounded + row * d, x * (factor * _HEADROOM), d)
        tl.store(p_rounded_factors + row, 1.0 / _HEADROOM)


@triton.jit
def _load_ordered(p_row: tl.tensor, d: tl.constexpr) -> tl.tensor:
    """Load a row in the order of its rounded copy."""
    o = tl.arange(0, triton.next_power_of_2(d))
    place = o % _ORDERED
    column = o - place + place % 32 // 2 * 8 + place // 32 * 2 + place % 2
    return tl.load(p_row + column, mask=o < d, other=0.0).to(tl.float32)


@triton.jit
def _store_rounded(p_row: tl.tensor, x: tl.tensor, d: tl.constexpr) -> None:
    o = tl.arange(0, triton.next_power_of_2(d))
    x = tl.where(x > _LARGEST, _LARGEST, x)
    x = tl.where(x < -_LARGEST, -_LARGEST, x)
    tl.store(p_row + o, x.to(p_row.dtype.element_ty), mask=o < d)
