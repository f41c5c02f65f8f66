"""The features stage's look-ups on a GPU: one launch for all sequences, one for all bags.

What makes it fast: a program reads its rows' numbers first and then all the rows at once, 16 bytes
at a time, so it waits for memory twice. Every sequence's states are contiguous, as copies of them
need.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous
from grace.kernels.features.feature_ops import Sequences, check_mean_bags, check_sum_events

_TILE = 2048  # elements of sums that a program makes
_IDS = 32  # of a bag that a program reads at a time


def sum_events_triton(table: Tensor, events: Tensor, lengths: Sequence[int]) -> Sequences:
    """Compute what `sum_events_reference` does."""
    check_sum_events(table, events, lengths)
    require_contiguous(table=table, events=events)
    (batch, places, ids), d = events.shape, table.shape[1]
    states = torch.empty((batch * places, d), dtype=table.dtype, device=table.device)
    mask = torch.empty(batch * places, dtype=torch.bool, device=table.device)
    if states.numel():
        columns = min(_TILE, triton.next_power_of_2(d))
        block = _TILE // columns
        _sum_events[(triton.cdiv(batch * places, block), triton.cdiv(d, columns))](
            *(table, events, states, mask.view(torch.uint8), batch, len(table) - 1),
            lengths=tuple(lengths),
            places=places,
            ids=ids,
            d=d,
            block_rows=block,
            block_d=columns,
            num_warps=4,
        )
    ends = [batch * end for end in accumulate(lengths)]
    parts = zip(lengths, [0, *ends], ends, strict=False)
    return tuple(
        (states[begin:end].view(batch, length, d), mask[begin:end].view(batch, length))
        for length, begin, end in parts
    )


def mean_bags_triton(table: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """Compute what `mean_bags_reference` does."""
    check_mean_bags(table, rows, offsets)
    require_contiguous(table=table, rows=rows, offsets=offsets)
    width = table.shape[1]
    out = torch.empty((len(offsets) - 1, width), dtype=table.dtype, device=table.device)
    if out.numel():
        columns = min(128, triton.next_power_of_2(width))
        _mean_bags[(len(out), triton.cdiv(width, columns))](
            *(table, rows, offsets, out),
            width=width,
            block_ids=_IDS,
            block_width=columns,
            num_warps=4,
        )
    return out


# A batch's numbers follow each other in one copy, so their addresses are not always aligned.
@triton.jit(do_not_specialize=["batch", "nothing"], do_not_specialize_on_alignment=["p_events"])
def _sum_events(
    p_table: tl.tensor,
    p_events: tl.tensor,
    p_states: tl.tensor,
    p_mask: tl.tensor,
    batch: tl.tensor,
    nothing: tl.tensor,
    lengths: tl.constexpr,
    places: tl.constexpr,
    ids: tl.constexpr,
    d: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
) -> None:
    # Rows are ordered by sequence, then request, then place.
    o_row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    live = o_row < batch * places
    o_request, o_place = o_row, o_row
    first = 0
    for i in tl.static_range(len(lengths)):
        own = o_row >= batch * first
        within = o_row - batch * first
        o_request = tl.where(own, within // lengths[i], o_request)
        o_place = tl.where(own, first + within % lengths[i], o_place)
        first += lengths[i]
    o_d = tl.program_id(1) * block_d + tl.arange(0, block_d)
    inside = live[:, None] & (o_d < d)[None, :]
    p_event = p_events + (o_request.to(tl.int64) * places + o_place) * ids
    total = tl.zeros((block_rows, block_d), tl.float32)
    for i in tl.static_range(ids):
        row = tl.load(p_event + i, mask=live, other=0).to(tl.int64)
        p_row = p_table + row[:, None] * d + o_d[None, :]
        total += tl.load(p_row, mask=inside, other=0.0).to(tl.float32)
    p_state = p_states + o_row.to(tl.int64)[:, None] * d + o_d[None, :]
    tl.store(p_state, total.to(p_states.dtype.element_ty), mask=inside)
    if tl.program_id(1) == 0:
        there = tl.load(p_event, mask=live, other=0) != nothing
        tl.store(p_mask + o_row, there.to(tl.uint8), mask=live)


@triton.jit(do_not_specialize_on_alignment=["p_rows", "p_offsets"])
def _mean_bags(
    p_table: tl.tensor,
    p_rows: tl.tensor,
    p_offsets: tl.tensor,
    p_out: tl.tensor,
    width: tl.constexpr,
    block_ids: tl.constexpr,
    block_width: tl.constexpr,
) -> None:
    i_bag = tl.program_id(0)
    begin, end = tl.load(p_offsets + i_bag), tl.load(p_offsets + i_bag + 1)
    o_column = tl.program_id(1) * block_width + tl.arange(0, block_width)
    total = tl.zeros((block_width,), tl.float32)
    for start in tl.range(begin, end, block_ids):
        o_id = start + tl.arange(0, block_ids)
        row = tl.load(p_rows + o_id, mask=o_id < end, other=0).to(tl.int64)
        inside = (o_id < end)[:, None] & (o_column < width)[None, :]
        p_row = p_table + row[:, None] * width + o_column[None, :]
        total += tl.sum(tl.load(p_row, mask=inside, other=0.0).to(tl.float32), axis=0)
    mean = total / tl.maximum(end - begin, 1)
    p_mean = p_out + i_bag.to(tl.int64) * width + o_column
    tl.store(p_mean, mean.to(p_out.dtype.element_ty), mask=o_column < width)
