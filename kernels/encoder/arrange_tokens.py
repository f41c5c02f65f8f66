"""The tokens of an InterFormer in one tensor, and which of them count.

A request's tokens are: places for gated summaries, the user's tokens, then each sequence with its
summaries first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.encoder.token_product import empty_squares, write_squares


def arrange_tokens_reference(
    summaries: Tensor, user: Tensor, states: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens, their squares, and the mask of those after the gated summaries.

    summaries  [sequences, m, d]   the first ones, of every request
    user       [B, N, d]
    states     [B, length, d]      of each sequence
    masks      bool [B, length]    of each sequence
    -> [B, T, d] and float32 [B, T, parts], T = sequences * m + N + tokens of the sequences, whose
       first sequences * m are undefined, and bool [B, N + tokens of the sequences]
    """
    check_arrange_tokens(summaries, user, states, masks)
    (sequences, m, d), batch = summaries.shape, len(user)
    whole = torch.ones((batch, m), dtype=torch.bool, device=user.device)
    tokens = [user.new_zeros((batch, sequences * m, d)), user]
    counts = [whole.new_ones(user.shape[:2])]
    for summary, state, mask in zip(summaries, states, masks, strict=True):
        tokens += [summary.expand(batch, -1, -1), state]
        counts += [whole, mask]
    arranged = torch.cat(tokens, dim=1)
    squares = empty_squares(arranged)
    write_squares(arranged, squares)
    return arranged, squares, torch.cat(counts, dim=1)


def check_arrange_tokens(
    summaries: Tensor, user: Tensor, states: Sequence[Tensor], masks: Sequence[Tensor]
) -> None:
    batch, _, d = user.shape
    m = summaries.shape[1]
    require_tensor("summaries", summaries, user.dtype, sequences=len(states), m=m, d=d)
    for i, (state, mask) in enumerate(zip(states, masks, strict=True)):
        length = state.shape[1]
        require_tensor(f"states[{i}]", state, user.dtype, requests=batch, length=length, d=d)
        require_tensor(f"masks[{i}]", mask, torch.bool, requests=batch, length=length)
