"""Random inputs of the attention kernels; a block table as a beam search leaves it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu.subject import Subject
from bench.rungs.attention import DenseCache

__all__ = ["CrossInputs", "SelfInputs", "cross_inputs", "self_inputs"]


@dataclass(frozen=True, slots=True)
class CrossInputs:
    """queries [B * M, H * d], keys and values [B, H, T, d], mask bool [B, T]"""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class SelfInputs:
    """
    pool   [L * rows, 3, H, d]   block j * rows + r is of a row of step j
    table  int32 [rows, L]
    qkv    [rows, 3, H, d]       the step's blocks, side by side
    cache  [L, rows, H, d] each  what the table points at, copied
    bias   float32 [H, L]        zero
    """

    pool: Tensor
    table: Tensor
    qkv: Tensor
    cache: DenseCache
    bias: Tensor
    scale: float


def cross_inputs(
    subject: Subject, beams: int, dtype: torch.dtype, device: torch.device, seed: int
) -> CrossInputs:
    decoder, generator = subject.spec.decoder, torch.Generator(device).manual_seed(seed)
    heads, d_head, tokens = decoder.heads, decoder.d_head, subject.spec.context_tokens

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    return CrossInputs(
        normal(subject.batch * beams, heads * d_head),
        normal(subject.batch, heads, tokens, d_head),
        normal(subject.batch, heads, tokens, d_head),
        torch.ones((subject.batch, tokens), dtype=torch.bool, device=device),
        d_head**-0.5,
    )


def self_inputs(
    subject: Subject,
    rows: int,
    step: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    tree: bool,
) -> SelfInputs:
    """`tree`: a row's parent is any of its request's rows, in order; else each row has its own."""
    decoder, generator = subject.spec.decoder, torch.Generator(device).manual_seed(7)
    length, shape = subject.spec.sid_length, (3, decoder.heads, decoder.d_head)
    pool = torch.randn((length * rows, *shape), generator=generator, device=device).to(dtype)
    own = torch.arange(rows, device=device)
    table = torch.empty((rows, length), dtype=torch.int64, device=device)
    beams, ancestors = rows // subject.batch, own
    for position in range(step, -1, -1):
        table[:, position] = position * rows + ancestors
        if tree:
            drawn = torch.randint(
                beams, (subject.batch, beams), generator=generator, device=device
            ).sort(dim=1)[0]
            parents = (drawn + own[::beams, None]).flatten()
            ancestors = parents[ancestors]
    table[:, step + 1 :] = -1
    cache = DenseCache(*(pool.new_zeros((length, rows, *shape[1:])) for _ in range(2)))
    for position in range(step + 1):
        cache.keys[position] = pool[table[:, position], 1]
        cache.values[position] = pool[table[:, position], 2]
    return SelfInputs(
        pool,
        table.int(),
        pool[step * rows : (step + 1) * rows],
        cache,
        torch.zeros((decoder.heads, length), device=device),
        decoder.d_head**-0.5,
    )
