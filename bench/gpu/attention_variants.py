"""The attention kernels by the names that the table gives them, on inputs of the same numbers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from grace.bench.gpu.attention_inputs import CrossInputs, SelfInputs
from grace.bench.gpu.clock import captured, sustained
from grace.bench.rungs.attention import append, beams_as_queries, beams_as_rows, sdpa_over_cache
from grace.bench.rungs.coalesced_triton import TILES, Tile, attend_fused, coalesced_over_cache
from grace.kernels import Ops

__all__ = ["best_tile", "cross_variants", "self_names", "self_variant"]

_TILE_SECONDS = 0.05


def cross_variants(ops: Ops, device: torch.device) -> dict[str, Callable[[CrossInputs], Tensor]]:
    """By name. `before` takes keys and values of every row."""

    def cudnn(x: CrossInputs) -> Tensor:
        batch, heads, _, d_head = x.keys.shape
        by_head = x.queries.view(batch, -1, heads, d_head).transpose(1, 2)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = scaled_dot_product_attention(by_head, x.keys, x.values, scale=x.scale)
        return out.transpose(1, 2).reshape(x.queries.shape)

    variants: dict[str, Callable[[CrossInputs], Tensor]] = {
        "before": lambda x: beams_as_rows(x.queries, x.keys, x.values, x.scale),
        "flash": lambda x: beams_as_queries(x.queries, x.keys, x.values, x.scale),
    }
    if device.type == "cuda":
        variants["cudnn"] = cudnn
    variants["ours"] = lambda x: ops.cross_attention(x.queries, x.keys, x.values, x.mask, x.scale)
    return variants


def self_names(device: torch.device) -> tuple[str, ...]:
    """All variants that this device runs; `write` depends on no step."""
    own_kernels = ("coalesced", "fused") if device.type == "cuda" else ()
    return ("write", "fa2", *own_kernels, "ours", "ours distinct")


def self_variant(name: str, ops: Ops, x: SelfInputs) -> Callable[[], Tensor | None]:
    """`ours` applies the row factors of the pool, as the decoder's does; the others do not."""
    step = x.table.step
    if name == "write":
        return lambda: append(x.qkv, x.cache, step)
    if name == "fa2":
        return lambda: sdpa_over_cache(x.qkv, x.cache, step, None, x.scale)
    if name == "coalesced":
        tile = best_tile(x, fused=False)
        return lambda: coalesced_over_cache(x.qkv, x.cache, step, None, x.scale, tile)
    if name == "fused":
        tile = best_tile(x, fused=True)
        return lambda: attend_fused(x.qkv, x.cache, step, None, x.scale, tile)
    assert name in ("ours", "ours distinct")
    return lambda: ops.self_attention(x.pool, x.table.ids, step, x.bias, x.scale, x.factors)


def best_tile(x: SelfInputs, *, fused: bool) -> Tile:
    """The fastest on this GPU, as the paper's autotuning picks it."""
    attend = attend_fused if fused else coalesced_over_cache
    times = {}
    for tile in TILES:

        def call(tile: Tile = tile) -> Tensor:
            return attend(x.qkv, x.cache, x.table.step, None, x.scale, tile)

        run = captured([call] * 4, x.qkv.device)
        times[tile] = sustained(run, x.qkv.device, _TILE_SECONDS, calls=4).p50_ms
    return min(times, key=times.__getitem__)
