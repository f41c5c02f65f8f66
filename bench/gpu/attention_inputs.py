"""Random inputs of the attention kernels; block tables of a search, and ones that share nothing."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.bench.gpu.subject import Engine, Subject, contexts_of
from grace.bench.rungs.attention import DenseCache
from grace.bench.rungs.every_token import EveryToken
from grace.configs.generation import BeamProfile
from grace.model.definition.spec import ModelSpec
from grace.model.engine.decode_loop import fast_search

__all__ = [
    "BlockTable",
    "CrossInputs",
    "SelfInputs",
    "cross_inputs",
    "distinct_table",
    "searched_tables",
    "self_inputs",
]


@dataclass(frozen=True, slots=True)
class CrossInputs:
    """queries [B * M, H * d], keys and values [B, H, T, d], mask bool [B, T]"""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class BlockTable:
    """
    ids     int32 [rows, L]   ids[:, step] are the rows' own, one after the other
    blocks  of the pool
    past    different blocks before the step: what must be read beside the rows' own
    """

    ids: Tensor
    step: int
    blocks: int
    past: int

    @staticmethod
    def of(ids: Tensor, step: int, blocks: int) -> "BlockTable":
        past = sum(len(torch.unique(ids[:, position])) for position in range(step))
        return BlockTable(ids, step, blocks, past)


@dataclass(frozen=True, slots=True)
class SelfInputs:
    """
    pool     [blocks, 3, H, d]
    factors  float32 [blocks]        what q, k and v of the pool lack, for whoever takes it
    qkv      [rows, 3, H, d]         the step's blocks, side by side
    cache    [L, rows, H, d] each    what the table points at, copied
    bias     float32 [H, L]          zero
    """

    table: BlockTable
    pool: Tensor
    factors: Tensor
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


def distinct_table(spec: ModelSpec, rows: int, step: int, device: torch.device) -> BlockTable:
    """Every row has a past of its own, as in a dense cache."""
    length = spec.sid_length
    own = torch.arange(rows, dtype=torch.int32, device=device)
    ids = own[:, None] + rows * torch.arange(length, dtype=torch.int32, device=device)
    ids[:, step + 1 :] = -1
    return BlockTable.of(ids, step, length * rows)


def searched_tables(subject: Subject, engine: Engine, profile: BeamProfile) -> list[BlockTable]:
    """Of every step of a generation without constraints, as the layers after the first read it."""
    device, dtype = engine.weights.device, engine.weights.dtype
    read: dict[int, BlockTable] = {}

    def attend(
        pool: Tensor,
        table: Tensor,
        step: int,
        bias: Tensor,
        scale: float,
        row_scale: Tensor | None = None,
    ) -> Tensor:
        if pool is not engine.weights.first_blocks and step not in read:
            read[step] = BlockTable.of(table.clone(), step, len(pool))
        return engine.ops.self_attention(pool, table, step, bias, scale, row_scale)

    context = contexts_of(subject, device, dtype, 1)[0]
    slot = EveryToken(max(subject.spec.vocab_sizes))
    ops = replace(engine.ops, self_attention=attend)
    fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    return [read[step] for step in range(subject.spec.sid_length)]


def self_inputs(spec: ModelSpec, table: BlockTable, dtype: torch.dtype) -> SelfInputs:
    decoder, device, step = spec.decoder, table.ids.device, table.step
    generator = torch.Generator(device).manual_seed(7)
    shape = (table.blocks, 3, decoder.heads, decoder.d_head)
    pool = torch.randn(shape, generator=generator, device=device).to(dtype)
    rows, first = len(table.ids), int(table.ids[0, step])
    cache = DenseCache(*(pool.new_zeros((spec.sid_length, rows, *shape[2:])) for _ in range(2)))
    for position in range(step + 1):
        cache.keys[position] = pool[table.ids[:, position], 1]
        cache.values[position] = pool[table.ids[:, position], 2]
    return SelfInputs(
        table,
        pool,
        torch.rand(table.blocks, generator=generator, device=device) + 0.5,
        pool[first : first + rows],
        cache,
        torch.zeros((decoder.heads, spec.sid_length), device=device),
        decoder.d_head**-0.5,
    )
