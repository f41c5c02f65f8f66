"""Inputs of the operations of a causal decoder, for op_cases.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.kernels.attention.prompt_attention import Heads, PromptQueries, PromptTokens
from grace.model.definition.inputs import map_tensors
from support.op_case import OpCase, Rng, normal, row_scales


def prompts(
    rng: Rng, lengths: tuple[int, ...], kv_heads: int, group: int, d: int, after: int = 0
) -> PromptTokens:
    """`after` tokens follow the last prompt, and are NaN, as are their keys and values."""
    total = sum(lengths)
    queries = normal(rng, total + after, kv_heads * group * d)
    pairs = normal(rng, total + after, 2, kv_heads, d)
    queries[total:], pairs[total:] = torch.nan, torch.nan
    offsets = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
    return PromptTokens(queries, pairs, offsets, max(lengths), d**-0.5)


def beams(given: PromptTokens, rng: Rng, count: int, step: int, length: int = 4) -> PromptQueries:
    """Return queries of as many beams each; blocks that no row names are NaN."""
    rows, (_, _, kv_heads, d) = count * (len(given.offsets) - 1), given.pairs.shape
    pool = torch.full((3 * rows * length, 2, kv_heads, d), torch.nan)
    blocks = torch.from_numpy(rng.permutation(len(pool))[: rows * length].astype(np.int32))
    table = blocks.view(rows, length)[torch.from_numpy(rng.integers(rows, size=rows))]
    pool[table[:, 1 : step + 1].long()] = normal(rng, rows, step, 2, kv_heads, d)
    table[:, step + 1 :], table[:, 0] = 2**30, -1
    return PromptQueries(
        queries=normal(rng, rows, given.queries.shape[1]),
        pairs=given.pairs,
        offsets=given.offsets,
        longest=given.longest,
        scale=given.scale,
        pool=pool,
        table=table,
        step=step,
    )


def in_type(given: Any, dtype: torch.dtype) -> Any:
    """Cast all floats but the factors and turns, which are always float32."""
    cast = map_tensors(given, lambda x: x.to(dtype) if x.is_floating_point() else x)
    kept = {"turns", "row_scale"} & set(given.__dataclass_fields__)
    return replace(cast, **{name: getattr(given, name) for name in kept})


def heads(
    rng: Rng, rows: int, count: int, kv_heads: int, d: int, *, biased: bool, normed: bool
) -> tuple[Heads, Tensor]:
    width = (count + 2 * kv_heads) * d
    angles = normal(rng, 37, d // 2)
    given = Heads(
        product=normal(rng, rows, width),
        heads=count,
        positions=torch.from_numpy(rng.integers(37, size=rows).astype(np.int32)),
        turns=torch.stack([angles.cos(), angles.sin()], dim=1),
        eps=1e-6,
        bias=normal(rng, width) if biased else None,
        gains=normal(rng, 2, d) if normed else None,
        row_scale=row_scales(rng, rows) if biased else None,
    )
    return given, torch.full((rows, 2, kv_heads, d), torch.nan)


def _typed(name: str, make: Callable[[Rng], Any], *, low: bool = False) -> OpCase:
    return OpCase(name, lambda rng, dtype: (in_type(make(rng), dtype),), low)


def _placed(name: str, *sizes: int, biased: bool = False, normed: bool = False) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        given, pairs = heads(rng, *sizes, biased=biased, normed=normed)
        return in_type(given, dtype), pairs.to(dtype)

    return OpCase(name, arguments)


def _summed(rows: int, tokens: int, d: int) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        x, head = normal(rng, rows, d), 3 * normal(rng, tokens, d) * d**-0.5
        return x.to(dtype), head.to(dtype), row_scales(rng, rows)

    return OpCase(f"rows={rows}-tokens={tokens}", arguments)


PROMPT_CASES: Mapping[str, tuple[OpCase, ...]] = {
    "causal_attention": (
        _typed("lengths=1,5,33", lambda rng: prompts(rng, (1, 5, 33), 2, 2, 8)),
        _typed("no-groups", lambda rng: prompts(rng, (63, 2), 3, 1, 16)),
        _typed("empty-requests", lambda rng: prompts(rng, (7, 0, 131, 0), 1, 7, 10)),
        _typed("d=128", lambda rng: prompts(rng, (129, 40), 1, 2, 128)),
    ),
    "prompt_attention": (
        _typed("step=0", lambda rng: beams(prompts(rng, (1, 5, 33), 2, 2, 8), rng, 1, 0)),
        _typed("step=1", lambda rng: beams(prompts(rng, (1, 5), 2, 3, 8, after=9), rng, 33, 1)),
        _typed("step=3", lambda rng: beams(prompts(rng, (65, 2, 131), 3, 1, 10), rng, 7, 3)),
        _typed("d=128", lambda rng: beams(prompts(rng, (300,), 1, 2, 128), rng, 63, 2)),
        _typed("d=256", lambda rng: beams(prompts(rng, (70,), 1, 2, 256), rng, 33, 1)),
    ),
    "place_heads": (
        _placed("bare", 33, 4, 2, 8),
        _placed("biased", 7, 3, 1, 10, biased=True),
        _placed("normed", 63, 6, 3, 16, normed=True),
        _placed("keys-alone", 5, 0, 2, 8, biased=True, normed=True),
    ),
    "log_sums": (_summed(7, 301, 24), _summed(33, 9001, 16), _summed(1, 1, 8)),
}
