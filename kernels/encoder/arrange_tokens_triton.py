"""The arrangement of an InterFormer's tokens on a GPU: one pass over all its inputs."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.encoder.arrange_tokens import check_arrange_tokens
from grace.kernels.encoder.token_product import empty_squares
from grace.kernels.triton_parts import await_kernel_before, early_launch

_TILE = 2048  # elements of a program


def arrange_tokens_triton(
    summaries: Tensor, user: Tensor, states: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `arrange_tokens_reference` does; tokens and masks are contiguous."""
    check_arrange_tokens(summaries, user, states, masks)
    named = [("summaries", summaries), ("user", user)]
    named += [(f"states[{i}]", each) for i, each in enumerate(states)]
    named += [(f"masks[{i}]", each) for i, each in enumerate(masks)]
    for name, tensor in named:
        rows_apart = tensor.dim() == 3 and tensor.stride(1) != tensor.shape[2]
        if tensor.numel() and (tensor.stride(-1) != 1 or rows_apart):
            strides = list(tensor.stride())
            raise ValueError(f"{name} must be contiguous in each request, got strides {strides}")
    (sequences, m, d), (batch, _, _) = summaries.shape, user.shape
    sources = [user]
    for summary, state in zip(summaries, states, strict=True):
        sources += [summary.expand(batch, -1, -1), state]
    gated = sequences * m
    counts = [source.shape[1] for source in sources]
    total = gated + sum(counts)
    tokens = torch.empty((batch, total, d), dtype=user.dtype, device=user.device)
    squares = empty_squares(tokens)
    mask = torch.empty((batch, total - gated), dtype=torch.bool, device=user.device)
    if tokens.numel():
        columns = triton.next_power_of_2(d)
        block = max(1, _TILE // columns)
        _arrange[(triton.cdiv(total - gated, block), batch)](
            tuple(sources),
            tuple(source.stride(0) for source in sources),
            tuple(each.view(torch.uint8) for each in masks),
            tuple(each.stride(0) for each in masks),
            tokens,
            squares,
            mask.view(torch.uint8),
            counts=tuple(counts),
            gated=gated,
            total=total,
            d=d,
            parts=squares.shape[2],
            block_tokens=block,
            block_d=columns,
            num_warps=4,
            **early_launch(user.device),
        )
    return tokens, squares, mask


@triton.jit
def _arrange(
    p_sources: tl.tuple,
    source_requests: tl.tuple,
    p_masks: tl.tuple,
    mask_requests: tl.tuple,
    p_tokens: tl.tensor,
    p_squares: tl.tensor,
    p_mask: tl.tensor,
    counts: tl.constexpr,
    gated: tl.constexpr,
    total: tl.constexpr,
    d: tl.constexpr,
    parts: tl.constexpr,
    block_tokens: tl.constexpr,
    block_d: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_request = tl.program_id(1).to(tl.int64)
    o_token = gated + tl.program_id(0) * block_tokens + tl.arange(0, block_tokens)
    o_d = tl.arange(0, block_d)
    x = tl.zeros((block_tokens, block_d), p_tokens.dtype.element_ty)
    there = tl.full((block_tokens,), 1, tl.uint8)
    begin = gated
    for i in tl.static_range(len(counts)):
        own = (o_token >= begin) & (o_token < begin + counts[i])
        p_source = p_sources[i] + i_request * source_requests[i] + (o_token - begin)[:, None] * d
        inside = own[:, None] & (o_d < d)[None, :]
        x = tl.where(own[:, None], tl.load(p_source + o_d[None, :], mask=inside, other=0.0), x)
        if i > 0 and i % 2 == 0:  # a sequence's events, which follow its summaries
            p_event = p_masks[i // 2 - 1] + i_request * mask_requests[i // 2 - 1] + o_token - begin
            there = tl.where(own, tl.load(p_event, mask=own, other=0), there)
        begin += counts[i]
    live = o_token < total
    p_row = p_tokens + (i_request * total + o_token)[:, None] * d + o_d[None, :]
    tl.store(p_row, x, mask=live[:, None] & (o_d < d)[None, :])
    sums = tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)
    o_part = tl.arange(0, triton.next_power_of_2(parts))
    value = tl.where((o_part == 0)[None, :], sums[:, None], 0.0)
    p_part = p_squares + (i_request * total + o_token)[:, None] * parts + o_part[None, :]
    tl.store(p_part, value, mask=live[:, None] & (o_part < parts)[None, :])
    tl.store(p_mask + i_request * (total - gated) + o_token - gated, there, mask=live)
