"""The rungs below the engine, each one line above the last."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from grace.bench.rungs.attention import DenseCache, attend_sdpa, beams_as_queries, beams_as_rows
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced, attend_fused
from grace.bench.rungs.dense_search import DenseSelfAttention, Rung

__all__ = ["DENSE_RUNGS", "L0", "L1", "L2", "L3", "tiled"]

L0 = Rung("L0", attend_sdpa, beams_as_rows, spreads=True)
L1 = Rung("L1", attend_sdpa, beams_as_queries, spreads=False)
L2 = replace(L1, name="L2", self_attention=attend_coalesced)
L3 = replace(L1, name="L3", self_attention=attend_fused)
DENSE_RUNGS = (L0, L1, L2, L3)


def tiled(rung: Rung, tiles: Sequence[Tile]) -> Rung:
    """The rung with its kernel's tile of each step, as measured; L0 and L1 have no tiles."""
    attend = {L2.name: attend_coalesced, L3.name: attend_fused}.get(rung.name)
    if attend is None:
        return rung
    by_step = tuple(partial(attend, tile=tile) for tile in tiles)
    return replace(rung, self_attention=_by_step(by_step))


def _by_step(attends: Sequence[DenseSelfAttention]) -> DenseSelfAttention:
    def attend(
        qkv: Tensor, cache: DenseCache, step: int, bias: Tensor | None, scale: float
    ) -> Tensor:
        return attends[step](qkv, cache, step, bias, scale)

    return attend
