"""The attention kernels that the table compares, by its names for them, and their random inputs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from grace.bench.gpu.instruments.measure import sustained
from grace.bench.gpu.subjects.search import EveryToken
from grace.bench.gpu.subjects.workload import Engine, Workload
from grace.bench.rungs.attention import DenseCache, append, attend_sdpa, cross_sdpa
from grace.bench.rungs.coalesced_triton import TILES, Tile, attend_coalesced
from grace.configs.generation import BeamProfile
from grace.kernels import Ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.model.engine.encoder_decoder.decode_loop import fast_search

_TILE_SECONDS = 0.05


class BlockTable(NamedTuple):
    ids: Tensor  # int32 [rows, L]: ids[:, step] are the rows' own, consecutive
    step: int
    blocks: int  # of the pool
    past: int  # distinct blocks before the step: they must be read as well as the rows' own

    @staticmethod
    def of(ids: Tensor, step: int, blocks: int) -> "BlockTable":
        past = sum(len(torch.unique(ids[:, position])) for position in range(step))
        return BlockTable(ids, step, blocks, past)


class SelfInputs(NamedTuple):
    table: BlockTable
    pool: Tensor  # [blocks, 3, H, d]
    factors: Tensor  # float32 [blocks]: row factors of q, k and v, which only `ours` applies
    qkv: Tensor  # [rows, 3, H, d]: the step's blocks, consecutive
    cache: DenseCache  # [L, rows, H, d] each    a copy of the blocks that the table names
    bias: Tensor  # float32 [H, L]: zero
    scale: float

    def written(self) -> tuple[Tensor, Tensor]:
        """Return the part of the cache that the step fills: its keys and values."""
        step, rows = self.table.step, len(self.table.ids)
        return self.cache.keys[step, :rows], self.cache.values[step, :rows]


def cross_inputs(work: Workload, beams: int, dtype: torch.dtype, seed: int) -> BeamQueries:
    decoder, generator = work.spec.decoder, torch.Generator(work.device).manual_seed(seed)
    heads, d_head, tokens = decoder.heads, decoder.d_head, work.spec.context_tokens

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=work.device).to(dtype)

    return BeamQueries(
        normal(work.batch * beams, heads * d_head),
        normal(work.batch, heads, tokens, d_head),
        normal(work.batch, heads, tokens, d_head),
        torch.ones((work.batch, tokens), dtype=torch.bool, device=work.device),
        d_head**-0.5,
    )


def distinct_table(work: Workload, rows: int, step: int) -> BlockTable:
    """Return a table whose rows share no past, as in a dense cache."""
    length = work.spec.sid_length
    own = torch.arange(rows, dtype=torch.int32, device=work.device)
    ids = own[:, None] + rows * torch.arange(length, dtype=torch.int32, device=work.device)
    ids[:, step + 1 :] = -1
    return BlockTable.of(ids, step, length * rows)


def searched_tables(work: Workload, engine: Engine, profile: BeamProfile) -> list[BlockTable]:
    """Return each step's table of an unconstrained generation, as the second layer reads it."""
    read: dict[int, BlockTable] = {}

    def attend(given: PagedPrefixes) -> Tensor:
        pool, step = given.pool, given.step
        if pool is not engine.weights.first_blocks and step not in read:
            read[step] = BlockTable.of(given.table.clone(), step, len(pool))
        return engine.ops.self_attention(given)

    context = work.contexts(engine.weights.dtype, 1)[0]
    ops = replace(engine.ops, self_attention=attend)
    slot = EveryToken(engine.vocabulary)
    fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    return [read[step] for step in range(work.spec.sid_length)]


def self_inputs(work: Workload, table: BlockTable, dtype: torch.dtype) -> SelfInputs:
    decoder, step = work.spec.decoder, table.step
    generator = torch.Generator(work.device).manual_seed(7)
    shape = (table.blocks, 3, decoder.heads, decoder.d_head)
    pool = torch.randn(shape, generator=generator, device=work.device).to(dtype)
    rows, first = len(table.ids), int(table.ids[0, step])
    length = work.spec.sid_length
    cache = DenseCache(*(pool.new_zeros((length, rows, *shape[2:])) for _ in range(2)))
    for position in range(step + 1):
        cache.keys[position] = pool[table.ids[:, position], 1]
        cache.values[position] = pool[table.ids[:, position], 2]
    return SelfInputs(
        table,
        pool,
        torch.rand(table.blocks, generator=generator, device=work.device) + 0.5,
        pool[first : first + rows],
        cache,
        torch.zeros((decoder.heads, length), device=work.device),
        decoder.d_head**-0.5,
    )


def cross_kernels(
    ops: Ops, device: torch.device, result: torch.dtype | None = None
) -> dict[str, Callable[[BeamQueries], Tensor]]:
    """Return the kernels by name. `before` takes keys and values of every row.

    Only `ours` can return a `result` of another type.
    """

    def sdpa(x: BeamQueries, backend: SDPBackend = SDPBackend.FLASH_ATTENTION) -> Tensor:
        return cross_sdpa(x.queries, x.keys, x.values, x.scale, backend)

    kernels: dict[str, Callable[[BeamQueries], Tensor]] = {"before": sdpa, "flash": sdpa}
    if device.type == "cuda":
        kernels["cudnn"] = partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION)
    kernels["ours"] = lambda x: ops.cross_attention(replace(x, dtype=result))
    return kernels


def self_names(device: torch.device) -> tuple[str, ...]:
    """All kernels that the device runs; the first, `write`, depends on no step."""
    triton_only = ("coalesced", "fused") if device.type == "cuda" else ()
    return ("write", "fa2", *triton_only, "ours", "ours distinct")


def self_kernel(
    work: Workload, name: str, ops: Ops, x: SelfInputs, result: torch.dtype | None = None
) -> Callable[[], Tensor | None]:
    """Return the call.

    Only `ours` applies the row factors of the pool, as the decoder's does, and can return a
    `result` of another type.
    """
    step = x.table.step
    if name.startswith("ours"):
        prefixes = PagedPrefixes(x.pool, x.table.ids, step, x.bias, x.scale, x.factors, result)
        return lambda: ops.self_attention(prefixes)
    if name == "write":
        return lambda: append(x.qkv, x.cache, step)
    if name == "fa2":
        return lambda: attend_sdpa(x.qkv, x.cache, step, x.scale)
    fused = name == "fused"
    tile = best_tile(work, x, fused=fused)
    return lambda: attend_coalesced(x.qkv, x.cache, step, x.scale, tile, fused=fused)


def best_tile(work: Workload, x: SelfInputs, *, fused: bool) -> Tile:
    """Return the fastest tile on this GPU, as the paper's autotuning picks it."""
    attend = partial(attend_coalesced, x.qkv, x.cache, x.table.step, x.scale, fused=fused)
    times = {}
    for tile in TILES:
        run = work.record_calls([partial(attend, tile=tile)] * 4)
        times[tile] = sustained(run, work.device, _TILE_SECONDS, calls=4).p50_ms
    return min(times, key=times.__getitem__)
