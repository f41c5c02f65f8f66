"""Products of tokens on a GPU: one kernel for all runs, with the norm and the gate inside.

What makes it fast: an encoder has many products too small to fill a GPU, so launches and copies
between them would take most of its time. A program finds its run by its number, and reads the
tokens of several requests as rows of one tile. It applies the norm's factor, the gate and the
residual to the sums in registers. It writes what it knows of its tokens' sums of squares, so no
norm needs a pass over memory. Where registers are few, a copy engine of the SM loads the weights,
which needs no addresses in registers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from grace.kernels.checks import require_whole_rows
from grace.kernels.devices import reads_operands
from grace.kernels.encoder import token_product
from grace.kernels.triton_parts import await_kernel_before, early_launch

_PART = tl.constexpr(token_product.PART)


class _Tiles(NamedTuple):
    """A program computes `rows` x `columns`, from `terms` of each sum at a time."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int
    # the most that a thread may have, or None for what the compiler takes
    registers: int | None = None


def token_product_triton(given: token_product.TokenProduct) -> Tensor:
    """Compute what `token_product_reference` does; every tensor is contiguous in its last axis."""
    given.check()
    x, weight, out, runs, after = given.x, given.weight, given.out, given.runs, given.after
    other, norm, squares = given.other, given.norm, given.squares
    require_whole_rows(x=x, weight=weight, out=out, other=other)
    batch, wide, inner = len(x), weight.shape[1], x.shape[2]
    tiles = _tiles_of(x, [batch * run.length for run in runs], wide, after)
    row_tiles = sum(triton.cdiv(batch * run.length, tiles.rows) for run in runs)
    other_strides = (0, 0) if other is None else other.stride()[:2]
    if row_tiles and wide:
        _multiply[(triton.cdiv(wide, tiles.columns), row_tiles)](
            None if after == "nothing" else _weight_map(weight, tiles),
            x,
            weight,
            other,
            out,
            None if norm is None else norm.squares,
            squares,
            batch,
            x.shape[1],
            out.shape[1],
            0.0 if norm is None else norm.eps,
            *x.stride()[:2],
            *weight.stride()[:2],
            *out.stride()[:2],
            *other_strides,
            runs=tuple(map(tuple, runs)),
            after=after,
            inner=inner,
            wide=wide,
            block_rows=tiles.rows,
            block_columns=tiles.columns,
            block_terms=tiles.terms,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            maxnreg=tiles.registers,
            **early_launch(x.device),
        )
    return out


def share_user_triton(
    tokens: Tensor, squares: Tensor, user: Tensor, begins: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Compute what `share_user_reference` does; tokens and user are contiguous in d."""
    token_product.check_share_user(tokens, squares, user, begins)
    require_whole_rows(tokens=tokens, user=user)
    requests, count, d = user.shape
    mean = torch.empty((requests, 1, d), dtype=user.dtype, device=user.device)
    mean_squares = token_product.empty_squares(mean)
    if mean.numel():
        _share[(requests,)](
            tokens,
            squares,
            user,
            mean,
            mean_squares,
            *tokens.stride()[:2],
            *user.stride()[:2],
            tokens.shape[1],
            begins=tuple(begins),
            count=count,
            d=d,
            parts=squares.shape[2],
            block_d=triton.next_power_of_2(d),
            num_warps=4,
            **early_launch(user.device),
        )
    return mean, mean_squares


def _tiles_of(x: Tensor, rows: Sequence[int], wide: int, after: token_product.After) -> _Tiles:
    """Return the largest tiles of which there are enough, as measured on an H200."""
    if x.dtype == torch.float32:
        return _Tiles(32, 32, 32, 4, 2)  # no tensor cores: what the registers hold
    if max(rows, default=0) <= 64:
        return _Tiles(16, 32, 128, 4, 3)
    # With the largest, the registers would hold neither a gate's numbers nor operands.
    for tiles, least in _LARGEST_FIRST[after == "gate" or not reads_operands(x.device) :]:
        programs = sum(triton.cdiv(each, tiles.rows) for each in rows) * (wide / tiles.columns)
        if programs >= least:
            return tiles
    return _Tiles(64, 32, 64, 4, 5)


# A program of 128 x 256 would fill an SM's registers: kernels of another stream could not start.
# With 128 registers a thread, two programs of 128 x 128 fit an SM: one multiplies while the other
# stores, and the programs of 16 requests take one turn instead of two.
_LARGEST_FIRST = (
    (_Tiles(128, 128, 64, 8, 3, registers=128), 200),
    (_Tiles(64, 128, 64, 4, 4), 120),
    (_Tiles(64, 64, 64, 4, 4), 64),
)


def _weight_map(weight: Tensor, tiles: _Tiles) -> TensorDescriptor | None:
    """Return the weights as one matrix, [runs * wide, inner], if a copy engine can read tiles."""
    (runs, wide, inner), row_bytes = weight.shape, weight.stride(1) * weight.element_size()
    stacked = runs == 1 or weight.stride(0) == wide * weight.stride(1)
    aligned = weight.data_ptr() % 16 == 0 and row_bytes % 16 == 0
    if not (stacked and aligned and tiles.registers):
        return None
    shape, strides = [runs * wide, inner], [weight.stride(1), 1]
    return TensorDescriptor(weight, shape, strides, [tiles.columns, tiles.terms])


@triton.jit(do_not_specialize=["batch"])
def _multiply(
    weight_map: tl.tensor,
    p_x: tl.tensor,
    p_weight: tl.tensor,
    p_other: tl.tensor,
    p_out: tl.tensor,
    p_norm: tl.tensor,
    p_squares: tl.tensor,
    batch: tl.tensor,
    x_tokens: tl.tensor,
    out_tokens: tl.tensor,
    eps: tl.tensor,
    x_request: tl.tensor,
    x_token: tl.tensor,
    weight_run: tl.tensor,
    weight_column: tl.tensor,
    out_request: tl.tensor,
    out_token: tl.tensor,
    other_request: tl.tensor,
    other_token: tl.tensor,
    runs: tl.constexpr,
    after: tl.constexpr,
    inner: tl.constexpr,
    wide: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_terms: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    # Programs of a run follow those of the run before it.
    i_run, tile, source, target, count = 0, tl.program_id(1), 0, 0, 1
    first = 0
    for i in tl.static_range(len(runs)):
        here = tl.program_id(1) >= first
        i_run = tl.where(here, i, i_run)
        tile = tl.where(here, tl.program_id(1) - first, tile)
        source = tl.where(here, runs[i][0], source)
        target = tl.where(here, runs[i][1], target)
        count = tl.where(here, runs[i][2], count)
        first += tl.cdiv(batch * runs[i][2], block_rows)
    o_row = tile * block_rows + tl.arange(0, block_rows)
    live = o_row < batch * count
    o_row = tl.minimum(o_row, batch * count - 1)  # the rows after the last repeat it
    o_request = (o_row // count).to(tl.int64)
    o_token = (o_row % count).to(tl.int64)
    o_column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    inside = o_column < wide
    o_read = o_column
    if wide % block_columns != 0:
        o_read = tl.minimum(o_column, wide - 1)  # the columns after the last repeat it
    o_term = tl.arange(0, block_terms)
    p_row = p_x + o_request * x_request + (source + o_token) * x_token
    p_a = p_row[:, None] + o_term[None, :]
    p_b = p_weight + tl.cast(i_run, tl.int64) * weight_run + (o_read * weight_column)[None, :]
    p_b += o_term[:, None]

    y = tl.zeros((block_rows, block_columns), tl.float32)
    if p_norm is not None:
        o_part = (o_request * x_tokens + source + o_token) * ((inner + _PART - 1) // _PART)
        factor = _factors(p_norm + o_part, eps, inner)
    first_column = i_run * wide + tl.program_id(0) * block_columns
    y = _add_product(y, p_a, p_b, weight_map, first_column, o_term, inner, block_terms)
    if p_norm is not None:
        y *= factor[:, None]
    stored = live[:, None] & inside[None, :]
    added = y
    if after == "gate":
        added = tl.load(p_row[:, None] + o_read[None, :])
    if after == "open":
        p_opening = p_other + (o_request * other_request + i_run * wide)[:, None]
        added = tl.load(p_opening + o_read[None, :])
    if after == "add":
        p_added = p_other + (o_request * other_request + (target + o_token) * other_token)[:, None]
        added = tl.load(p_added + o_column[None, :], mask=stored, other=0.0)
    y = _finished(y, added, after)
    p_result = p_out + (o_request * out_request + (target + o_token) * out_token)[:, None]
    result = y.to(p_out.dtype.element_ty)
    tl.store(p_result + o_column[None, :], result, mask=stored)
    if p_squares is not None:
        rounded = tl.where(inside[None, :], result.to(tl.float32), 0.0)
        o_part = (o_request * out_tokens + target + o_token) * ((wide + _PART - 1) // _PART)
        sums = tl.sum(rounded * rounded, axis=1)
        _store_sums(p_squares + o_part, sums, live, wide, block_columns)


@triton.jit
def _add_product(
    y: tl.tensor,
    p_a: tl.tensor,
    p_b: tl.tensor,
    weight_map: tl.tensor,
    first_column: tl.tensor,
    o_term: tl.tensor,
    inner: tl.constexpr,
    block_terms: tl.constexpr,
) -> tl.tensor:
    for start in range(0, inner, block_terms):
        there = start + o_term < inner
        if inner % block_terms == 0:
            a = tl.load(p_a + start)
        else:
            a = tl.load(p_a + start, mask=there[None, :], other=0.0)
        if weight_map is not None:
            b = weight_map.load([first_column, start]).T
        elif inner % block_terms == 0:
            b = tl.load(p_b + start)
        else:
            b = tl.load(p_b + start, mask=there[:, None], other=0.0)
        y = tl.dot(a, b, y, input_precision="ieee")
    return y


@triton.jit
def _finished(y: tl.tensor, other: tl.tensor, after: tl.constexpr) -> tl.tensor:
    if after == "relu":
        return tl.where(y < 0.0, 0.0, y)  # NaN stays NaN, which a maximum would hide
    if after == "gate":
        return other.to(tl.float32) * _sigmoid(y)
    if after == "opening":
        return 2.0 * _sigmoid(y)
    if after == "open":
        return tl.where(y < 0.0, 0.0, y) * other.to(tl.float32)
    if after == "add":
        return other.to(tl.float32) + y
    return y


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    # ptxas 12.8 takes sums of wgmma for 0 if they are negated, so exp(-x) would be 1 here.
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _factors(p_part: tl.tensor, eps: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    """Return the factors of rows, whose first parts are at `p_part`."""
    parts: tl.constexpr = (inner + _PART - 1) // _PART
    o_part = tl.arange(0, triton.next_power_of_2(parts))[None, :]
    squares = tl.load(p_part[:, None] + o_part, mask=o_part < parts, other=0.0)
    return tl.rsqrt(tl.sum(squares, axis=1) / inner + eps)


@triton.jit
def _store_sums(
    p_part: tl.tensor,
    sums: tl.tensor,
    live: tl.tensor,
    wide: tl.constexpr,
    block_columns: tl.constexpr,
) -> None:
    """Store the sums of a tile's columns as the first of its parts; the others are 0."""
    parts: tl.constexpr = (wide + _PART - 1) // _PART
    o_own = tl.arange(0, block_columns // _PART)[None, :]
    o_part = o_own + tl.program_id(0) * (block_columns // _PART)
    value = tl.where(o_own == 0, sums[:, None], 0.0)
    tl.store(p_part[:, None] + o_part, value, mask=live[:, None] & (o_part < parts))


@triton.jit
def _share(
    p_tokens: tl.tensor,
    p_squares: tl.tensor,
    p_user: tl.tensor,
    p_mean: tl.tensor,
    p_mean_squares: tl.tensor,
    tokens_request: tl.tensor,
    tokens_token: tl.tensor,
    user_request: tl.tensor,
    user_token: tl.tensor,
    tokens: tl.tensor,
    begins: tl.constexpr,
    count: tl.constexpr,
    d: tl.constexpr,
    parts: tl.constexpr,
    block_d: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_request = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, block_d)
    inside = o_d < d
    total = tl.zeros((block_d,), tl.float32)
    for i_token in tl.static_range(count):
        p_token = p_user + i_request * user_request + i_token * user_token + o_d
        user = tl.load(p_token, mask=inside, other=0.0).to(tl.float32)
        total += user
        for i in tl.static_range(len(begins)):
            o_token = begins[i] + i_token
            p_token = p_tokens + i_request * tokens_request + o_token * tokens_token + o_d
            added = tl.load(p_token, mask=inside, other=0.0).to(tl.float32) + user
            p_part = p_squares + (i_request * tokens + o_token) * parts
            _store_token(added, p_token, p_part, inside, parts)
    mean = total / count
    _store_token(
        mean, p_mean + i_request * d + o_d, p_mean_squares + i_request * parts, inside, parts
    )


@triton.jit
def _store_token(
    x: tl.tensor, p_x: tl.tensor, p_part: tl.tensor, inside: tl.tensor, parts: tl.constexpr
) -> None:
    """Store a token and its sum of squares, as the first of its parts."""
    rounded = x.to(p_x.dtype.element_ty)
    tl.store(p_x, rounded, mask=inside)
    kept = tl.where(inside, rounded.to(tl.float32), 0.0)
    o_part = tl.arange(0, triton.next_power_of_2(parts))
    value = tl.where(o_part == 0, tl.sum(kept * kept, axis=0), 0.0)
    tl.store(p_part + o_part, value, mask=o_part < parts)
