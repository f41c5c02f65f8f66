"""Inputs on which all implementations of an operation must agree, by the operation's name in Ops.

They are adversarial on purpose: odd sizes, dead beams, users without anything, ties, memory that
must not be read (NaN) and keys that must not count (huge). A new operation adds its cases here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import NO_BLOCK, Candidates
from support import hard_inputs
from support.admission_cases import ADMISSION, ELIGIBILITY


@dataclass(frozen=True)
class OpCase:
    """`arguments` makes a call's positional arguments from a seeded generator."""

    name: str
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: mapped(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **changed)
    return value


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def row_scales(rng: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(rng.uniform(0.5, 1.5, count).astype(np.float32))


def attention_pool(
    rng: np.random.Generator, rows: int, length: int, step: int, heads: int, d_head: int
) -> tuple[Tensor, Tensor]:
    """Pool and table. Blocks are shared and in no order; those that no row names are NaN."""
    pool = normal(rng, 2 * rows * length, 3, heads, d_head)
    blocks = rng.permutation(len(pool))[: rows * length].astype(np.int32)
    table = torch.from_numpy(rng.choice(blocks, size=(rows, length)))
    table[:, step + 1 :] = NO_BLOCK
    unused = torch.ones(len(pool), dtype=torch.bool)
    unused[table[:, : step + 1].long().flatten()] = False
    pool[unused] = torch.nan
    return pool, table


def _self_attention(
    step: int, length: int, heads: int, d_head: int, rows: int, scaled: bool, dtype: torch.dtype
) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        pool, table = attention_pool(rng, rows, length, step, heads, d_head)
        bias = normal(rng, heads, length)
        row_scale = row_scales(rng, len(pool)) if scaled else None
        if row_scale is not None:
            row_scale[pool[:, 0, 0, 0].isnan()] = torch.nan
        return pool.to(dtype), table, step, bias, d_head**-0.5, row_scale

    kind = str(dtype).removeprefix("torch.")
    size = "" if d_head in (8, 16, 32) else f"-d={d_head}"
    return OpCase(f"step={step}-{kind}-{'scaled' if scaled else 'plain'}{size}", arguments)


def cross_inputs(
    rng: np.random.Generator, requests: int, beams: int, heads: int, tokens: int, d_head: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and mask. Request 0 has no key; masked keys and values are huge."""
    queries = normal(rng, requests * beams, heads * d_head)
    keys = normal(rng, requests, tokens, heads, d_head).transpose(1, 2)
    values = normal(rng, requests, tokens, heads, d_head).transpose(1, 2)
    mask = torch.from_numpy(rng.random((requests, tokens)) < 0.6)
    mask[0], mask[1:, tokens // 2] = False, True
    for tensor in (keys, values):
        tensor.masked_fill_(~mask[:, None, :, None], 1e4)
    return queries, keys, values, mask


def _cross_attention(
    name: str, beams: int, tokens: int, scaled: bool, dtype: torch.dtype
) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        *floats, mask = cross_inputs(rng, 3, beams, 2, tokens, 8)
        row_scale = row_scales(rng, 3 * beams) if scaled else None
        return *(x.to(dtype) for x in floats), mask, 0.3, row_scale

    return OpCase(name, arguments)


def _gathered_queries(scaled: bool) -> OpCase:
    """Return a case where 33 rows read 7 queries; no row reads the eighth, which is NaN."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        queries, keys, values, mask = cross_inputs(rng, 3, 11, 2, 13, 8)
        memo = torch.cat([queries[:7], torch.full_like(queries[:1], torch.nan)])
        rows = torch.from_numpy(rng.integers(7, size=33, dtype=np.int32))
        return memo, keys, values, mask, 0.3, row_scales(rng, 33) if scaled else None, rows

    return OpCase(f"gathered-queries{'-scaled' if scaled else ''}", arguments)


def _wide_context(beams: int, heads: int, tokens: int, d_head: int) -> OpCase:
    """Keys by head, values by token; of the last request only the last key counts."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        queries, keys, values, mask = cross_inputs(rng, 3, beams, heads, tokens, d_head)
        mask[2] = False
        mask[2, -1] = True
        keys.masked_fill_(~mask[:, None, :, None], 1e4)
        values[2, :, -1] = normal(rng, heads, d_head)
        return queries, keys.contiguous(), values, mask, d_head**-0.5, row_scales(rng, 3 * beams)

    return OpCase(f"beams={beams}-tokens={tokens}-d={d_head}", arguments)


def _row_factors(rows: int, d: int, dtype: torch.dtype) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        x = 9 * normal(rng, rows, d)
        x[0] = 0
        return x.to(dtype), 1e-6

    return OpCase(f"rows={rows}-d={d}-{str(dtype).removeprefix('torch.')}", arguments)


def _activation(ffn: str, rows: int, wide: int, dtype: torch.dtype) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        return normal(rng, rows, wide).to(dtype), row_scales(rng, rows), ffn

    return OpCase(f"{ffn}-{str(dtype).removeprefix('torch.')}", arguments)


def selection_inputs(
    rng: np.random.Generator,
    requests: int,
    beams: int,
    columns: int,
    fan_out: int,
    k: int,
    ordered: bool,
) -> tuple[Any, ...]:
    """No two totals of a request are near each other, so that no rounding decides.

    Rows hold the same logits in another order each, multiples of 1/16, and so share one normaliser;
    the beams' scores differ where the logits are equal. Tokens leave the last 3 columns unused.
    """
    assert beams < 64
    logits = np.array([rng.permutation(columns) / 16 for _ in range(requests * beams)], np.float32)
    scores = np.array([rng.permutation(beams) / 1024 for _ in range(requests)], np.float32)
    counts = rng.integers(fan_out + 1, size=requests * beams)
    counts[:beams] = 0  # nothing for the first request
    return (
        torch.from_numpy(logits),
        torch.from_numpy(-scores),
        _jagged(rng, counts, columns - 3),
        k,
        ordered,
    )


def tied_selection_inputs(
    rng: np.random.Generator, requests: int, beams: int, columns: int, k: int, ordered: bool
) -> tuple[Any, ...]:
    """Totals repeat: the rows of a request share their logits, of few values, and two scores."""
    logits = np.repeat(rng.integers(4, size=(requests, columns)), beams, axis=0) / 4
    scores = -8.0 * rng.integers(2, size=(requests, beams))
    counts = rng.integers(columns - 2, size=requests * beams)
    return (
        torch.from_numpy(logits.astype(np.float32)),
        torch.from_numpy(scores.astype(np.float32)),
        _jagged(rng, counts, columns - 3),
        k,
        ordered,
    )


def _jagged(rng: np.random.Generator, counts: Any, vocab: int) -> Candidates:
    tokens = [np.sort(rng.choice(vocab, size=count, replace=False)) for count in counts]
    offsets = np.array([0, *np.cumsum(counts)], np.int32)
    return Candidates(
        torch.from_numpy(offsets),
        torch.from_numpy(np.concatenate([np.empty(0, np.int32), *tokens]).astype(np.int32)),
        torch.from_numpy(rng.permutation(7 * offsets[-1])[: offsets[-1]].astype(np.int32)),
    )


def _with_room(candidates: Candidates, room: int) -> Candidates:
    """Give every row `room` places that begin with its candidates; no one may read the rest."""
    counts = candidates.offsets.diff()
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    places = torch.arange(len(rows)) - candidates.offsets[:-1][rows] + room * rows
    tokens = torch.full((room * len(counts),), torch.iinfo(torch.int32).max, dtype=torch.int32)
    nodes = torch.full_like(tokens, NO_NODE)
    tokens[places], nodes[places] = candidates.tokens, candidates.nodes
    offsets = room * torch.arange(len(counts) + 1, dtype=torch.int32)
    return Candidates(offsets, tokens, nodes, counts)


def _scaled_selection(ordered: bool) -> OpCase:
    """Logits and factors whose products are those of `selection_inputs`; candidates with room."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        logits, scores, candidates, k, _ = selection_inputs(rng, 5, 11, 63, 60, 37, ordered)
        factors = torch.from_numpy(2.0 ** rng.integers(-2, 3, size=len(logits)).astype(np.float32))
        scaled = logits / factors.unsqueeze(1)
        return scaled, scores, _with_room(candidates, 63), k, ordered, factors

    return OpCase(f"scaled-with-room-{'ordered' if ordered else 'in-order'}", arguments)


def _dead_everywhere(rng: np.random.Generator) -> tuple[Any, ...]:
    """Most rows are dead: they have score -inf, no candidates, and logits that must not be read."""
    logits, scores, _, k, ordered = selection_inputs(rng, 3, 11, 63, 9, 7, False)
    counts = rng.integers(3, size=33) * (rng.random(33) < 0.2)
    dead = torch.from_numpy(counts == 0)
    logits[dead] = torch.nan
    scores.masked_fill_(dead.view(3, 11), -torch.inf)
    return logits, scores, _jagged(rng, counts, 60), k, ordered


def _corrupt(ordered: bool) -> OpCase:
    """Every other request has a number that is not finite, each of another kind."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        logits, scores, _, k, _ = selection_inputs(rng, 7, 11, 63, 60, 37, ordered)
        logits[0, 0], logits[32, 62], scores[4, 3], scores[6, 10] = (
            torch.nan,
            torch.inf,
            torch.nan,
            torch.inf,
        )
        return logits, scores, _jagged(rng, np.full(77, 9), 60), k, ordered

    return OpCase(f"corrupt-{'ordered' if ordered else 'in-order'}", arguments)


def _crowded(kind: str, k: int, ordered: bool) -> OpCase:
    name = f"{kind}-k={k}-{'ordered' if ordered else 'in-order'}"
    return OpCase(name, lambda rng: hard_inputs.crowded_selection(rng, kind, k, ordered))


def _rearrangement(rows: int, length: int, step: int, requests: int, k: int) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        table = rng.integers(1000, size=(rows, length), dtype=np.int32)
        parents = rng.integers(rows, size=(requests, k), dtype=np.int32)
        return torch.from_numpy(table), torch.from_numpy(parents), step

    return OpCase(f"step={step}-rows={rows}-k={k}", arguments)


CASES: Mapping[str, tuple[OpCase, ...]] = {
    "self_attention": (
        *(_self_attention(t, 4, 3, 8, 63, False, torch.float32) for t in range(4)),
        *(_self_attention(t, 3, 1, 16, 111, True, torch.float32) for t in range(3)),
        _self_attention(2, 3, 2, 32, 7, True, torch.bfloat16),
        _self_attention(7, 8, 3, 24, 5, True, torch.float32),
        _self_attention(3, 4, 9, 5, 13, True, torch.float32),
        _self_attention(3, 4, 7, 256, 3, False, torch.float32),
    ),
    "cross_attention": (
        _cross_attention("beams=1", 1, 13, False, torch.float32),
        _cross_attention("beams=33", 33, 13, False, torch.float32),
        _cross_attention("beams=11-scaled", 11, 1, True, torch.float32),
        _cross_attention("beams=11-bfloat16", 11, 13, False, torch.bfloat16),
        _gathered_queries(scaled=False),
        _gathered_queries(scaled=True),
        _wide_context(7, 2, 65, 24),
        _wide_context(67, 1, 33, 5),
        _wide_context(3, 1, 301, 40),
    ),
    "row_factors": (
        _row_factors(63, 24, torch.float32),
        _row_factors(1, 2048, torch.float32),
        _row_factors(33, 1000, torch.bfloat16),
        _row_factors(3, 9001, torch.float32),
    ),
    "activate": (
        _activation("relu", 63, 24, torch.float32),
        _activation("gated_gelu", 33, 48, torch.float32),
        _activation("relu", 7, 512, torch.bfloat16),
        _activation("gated_gelu", 7, 1024, torch.bfloat16),
        _activation("relu", 3, 1111, torch.float32),
        _activation("gated_gelu", 3, 1402, torch.float32),
    ),
    "eligible_nodes": tuple(OpCase(*case) for case in ELIGIBILITY.items()),
    "admit_children": tuple(OpCase(*case) for case in ADMISSION.items()),
    "select_beams": (
        OpCase("kept-in-order", lambda rng: selection_inputs(rng, 5, 11, 63, 60, 37, False)),
        OpCase("ordered", lambda rng: selection_inputs(rng, 5, 11, 63, 60, 37, True)),
        OpCase("one-beam", lambda rng: selection_inputs(rng, 3, 1, 111, 108, 63, False)),
        OpCase("k-above-candidates", lambda rng: selection_inputs(rng, 3, 7, 63, 5, 111, True)),
        OpCase("no-candidates", lambda rng: selection_inputs(rng, 3, 7, 63, 0, 5, False)),
        OpCase("ties", lambda rng: tied_selection_inputs(rng, 5, 11, 37, 63, False)),
        OpCase("ties-ordered", lambda rng: tied_selection_inputs(rng, 5, 11, 37, 63, True)),
        _scaled_selection(ordered=False),
        _scaled_selection(ordered=True),
        OpCase("dead-everywhere", _dead_everywhere),
        _corrupt(ordered=False),
        _corrupt(ordered=True),
        _crowded("equal", 257, False),
        _crowded("equal", 5001, True),
        _crowded("few", 1403, False),
        _crowded("few", 3, True),
        _crowded("row", 255, True),
        _crowded("row", 63, False),
        _crowded("far", 1023, False),
        _crowded("far", 4099, True),
    ),
    "rearrange": (
        _rearrangement(3, 4, 0, 3, 63),
        _rearrangement(33, 4, 2, 3, 7),
        _rearrangement(7, 3, 2, 1, 111),
        _rearrangement(63, 5, 3, 5, 131),
    ),
}
