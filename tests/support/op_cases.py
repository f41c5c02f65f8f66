"""Inputs on which all implementations of an operation must agree, by the operation's name in Ops.

They are adversarial on purpose: odd sizes, dead beams, users without anything, ties, memory that
must not be read (NaN) and keys that must not count (huge). A new operation adds its cases here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import NO_BLOCK, Candidates
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.decode.select_beams import Choice
from support.decode_cases import ADMISSION, ELIGIBILITY
from support.op_case import OpCase, Rng, normal, row_scales
from support.prompt_op_cases import PROMPT_CASES


def attention_pool(
    rng: Rng, rows: int, length: int, step: int, heads: int, d_head: int
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


def _prefixes(
    step: int, length: int, heads: int, d: int, rows: int, *, scaled: bool, low: bool = False
) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        pool, table = attention_pool(rng, rows, length, step, heads, d)
        bias = normal(rng, heads, length)
        row_scale = row_scales(rng, len(pool)) if scaled else None
        if row_scale is not None:
            row_scale[pool[:, 0, 0, 0].isnan()] = torch.nan
        return (PagedPrefixes(pool.to(dtype), table, step, bias, d**-0.5, row_scale),)

    kind = "-scaled" if scaled else ""
    return OpCase(f"step={step}-of-{length}-{heads}x{d}-rows={rows}{kind}", arguments, low)


def cross_inputs(
    rng: Rng, requests: int, beams: int, heads: int, tokens: int, d_head: int, scale: float = 0.3
) -> BeamQueries:
    """Request 0 has no key; masked keys and values are huge."""
    queries = normal(rng, requests * beams, heads * d_head)
    keys = normal(rng, requests, tokens, heads, d_head).transpose(1, 2)
    values = normal(rng, requests, tokens, heads, d_head).transpose(1, 2)
    mask = torch.from_numpy(rng.random((requests, tokens)) < 0.6)
    mask[0], mask[1:, tokens // 2] = False, True
    for tensor in (keys, values):
        tensor.masked_fill_(~mask[:, None, :, None], 1e4)
    return BeamQueries(queries, keys, values, mask, scale)


def cross_in(given: BeamQueries, dtype: torch.dtype) -> BeamQueries:
    return replace(
        given,
        queries=given.queries.to(dtype),
        keys=given.keys.to(dtype),
        values=given.values.to(dtype),
    )


def _cross(name: str, make: Callable[[Rng], BeamQueries], *, low: bool = False) -> OpCase:
    return OpCase(name, lambda rng, dtype: (cross_in(make(rng), dtype),), low)


def _asked(rng: Rng, beams: int, tokens: int, *, scaled: bool = False) -> BeamQueries:
    given = cross_inputs(rng, 3, beams, 2, tokens, 8)
    return replace(given, row_scale=row_scales(rng, 3 * beams) if scaled else None)


def _gathered(rng: Rng, *, scaled: bool) -> BeamQueries:
    """33 rows read 7 queries; no row reads the eighth, which is NaN."""
    given = cross_inputs(rng, 3, 11, 2, 13, 8)
    memo = torch.cat([given.queries[:7], torch.full_like(given.queries[:1], torch.nan)])
    rows = torch.from_numpy(rng.integers(7, size=33, dtype=np.int32))
    scales = row_scales(rng, 33) if scaled else None
    return replace(given, queries=memo, row_scale=scales, query_rows=rows)


def _wide_context(rng: Rng, beams: int, heads: int, tokens: int, d: int) -> BeamQueries:
    """Keys by head, values by token; of the last request only the last key counts."""
    given = cross_inputs(rng, 3, beams, heads, tokens, d, d**-0.5)
    given.key_mask[2] = False
    given.key_mask[2, -1] = True
    given.keys.masked_fill_(~given.key_mask[:, None, :, None], 1e4)
    given.values[2, :, -1] = normal(rng, heads, d)
    return replace(given, keys=given.keys.contiguous(), row_scale=row_scales(rng, 3 * beams))


def _rows(rows: int, d: int, *, low: bool = False) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        x = 9 * normal(rng, rows, d)
        x[0] = 0
        return x.to(dtype), 1e-6

    return OpCase(f"rows={rows}-d={d}", arguments, low)


def _activation(ffn: str, rows: int, wide: int, *, low: bool = False) -> OpCase:
    return OpCase(
        f"{ffn}-rows={rows}-wide={wide}",
        lambda rng, dtype: (normal(rng, rows, wide).to(dtype), row_scales(rng, rows), ffn),
        low,
    )


def selection_inputs(
    rng: Rng, requests: int, beams: int, columns: int, fan_out: int, k: int, ordered: bool
) -> Choice:
    """No two totals of a request are near each other, so that no rounding decides.

    Rows hold the same logits in another order each, multiples of 1/16, and so share one normaliser;
    the beams' scores differ where the logits are equal. Tokens leave the last 3 columns unused.
    """
    assert beams < 64
    logits = np.array([rng.permutation(columns) / 16 for _ in range(requests * beams)], np.float32)
    scores = np.array([rng.permutation(beams) / 1024 for _ in range(requests)], np.float32)
    counts = rng.integers(fan_out + 1, size=requests * beams)
    counts[:beams] = 0  # nothing for the first request
    candidates = _jagged(rng, counts, columns - 3)
    return Choice(torch.from_numpy(logits), torch.from_numpy(-scores), candidates, k, ordered)


def _tied_selection(rng: Rng, *, ordered: bool) -> Choice:
    """Totals repeat: the rows of a request share their logits, of few values, and two scores."""
    logits = np.repeat(rng.integers(4, size=(5, 37)), 11, axis=0) / 4
    scores = -8.0 * rng.integers(2, size=(5, 11))
    candidates = _jagged(rng, rng.integers(35, size=55), 34)
    numbers, own = (torch.from_numpy(x.astype(np.float32)) for x in (logits, scores))
    return Choice(numbers, own, candidates, 63, ordered)


def _jagged(rng: Rng, counts: Any, vocab: int) -> Candidates:
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


def _scaled_selection(rng: Rng, *, ordered: bool) -> Choice:
    """Logits and factors whose products are those of `selection_inputs`; candidates with room."""
    given = selection_inputs(rng, 5, 11, 63, 60, 37, ordered)
    row_scale = torch.from_numpy(2.0 ** rng.integers(-2, 3, size=55).astype(np.float32))
    logits, candidates = given.logits / row_scale.unsqueeze(1), _with_room(given.candidates, 63)
    return replace(given, logits=logits, candidates=candidates, row_scale=row_scale)


def _dead_everywhere(rng: Rng) -> Choice:
    """Most rows are dead: they have score -inf, no candidates, and logits that must not be read."""
    given = selection_inputs(rng, 3, 11, 63, 9, 7, False)
    counts = rng.integers(3, size=33) * (rng.random(33) < 0.2)
    dead = torch.from_numpy(counts == 0)
    given.logits[dead] = torch.nan
    given.scores.masked_fill_(dead.view(3, 11), -torch.inf)
    return replace(given, candidates=_jagged(rng, counts, 60))


def _impossible(rng: Rng) -> Choice:
    """A third of the candidates has probability zero."""
    given = selection_inputs(rng, 3, 7, 63, 5, 111, True)
    given.logits[:, ::3] = -torch.inf
    return given


def _corrupt(rng: Rng, *, ordered: bool) -> Choice:
    """Every other request has a number that is not finite, each of another kind."""
    given = selection_inputs(rng, 7, 11, 63, 60, 37, ordered)
    given.logits[0, 0], given.logits[32, 62] = torch.nan, torch.inf
    given.scores[4, 3], given.scores[6, 10] = torch.nan, torch.inf
    return replace(given, candidates=_jagged(rng, np.full(77, 9), 60))


def full_rows(requests: int, beams: int, columns: int, candidates: int) -> Candidates:
    """Every row has the lowest `candidates` tokens; nodes are numbered across rows."""
    rows = requests * beams
    tokens = torch.arange(candidates, dtype=torch.int32).repeat(rows)
    offsets = torch.arange(rows + 1, dtype=torch.int32) * candidates
    assert candidates <= columns
    return Candidates(offsets, tokens, torch.arange(len(tokens), dtype=torch.int32))


def crowded_selection(rng: np.random.Generator, kind: str, k: int, ordered: bool) -> Choice:
    """Requests of 111 beams with 160 candidates each; rows differ by their scores only.

    equal  all totals of a request are equal
    few    the totals of a request have three values
    row    two requests; in each, one row has the best totals, and another the next best
    far    two requests; no two totals are near each other
    """
    beams, columns, requests = 111, 163, 2 if kind in ("row", "far") else 1
    one_row = {
        "equal": np.zeros(columns),
        "few": rng.integers(3, size=columns),
        "row": rng.permutation(columns) / 16,
        "far": rng.permutation(columns) / 16,
    }[kind]
    logits = np.tile(one_row.astype(np.float32), (requests * beams, 1))
    scores = np.stack([_scores(rng, kind, beams) for _ in range(requests)])
    candidates = full_rows(requests, beams, columns, 160)
    scored = torch.from_numpy(scores.astype(np.float32))
    return Choice(torch.from_numpy(logits), scored, candidates, k, ordered)


def _scores(rng: np.random.Generator, kind: str, beams: int) -> Sequence[float]:
    distinct: list[float] = (-rng.permutation(beams) / 2048).tolist()
    if kind == "far":
        return distinct
    if kind == "row":
        best, next_best = rng.choice(beams, size=2, replace=False).tolist()
        return [{best: 0.0, next_best: -20.0}.get(beam, -50.0) for beam in range(beams)]
    return [0.0] * beams


def _crowded(kind: str, k: int, ordered: bool) -> OpCase:
    name = f"{kind}-k={k}-{'ordered' if ordered else 'in-order'}"
    return _choice(name, lambda rng: crowded_selection(rng, kind, k, ordered))


def _choice(name: str, make: Callable[[Rng], Choice]) -> OpCase:
    return _untyped(name, lambda rng: (make(rng),))


def _untyped(name: str, make: Callable[[Rng], tuple[Any, ...]]) -> OpCase:
    return OpCase(name, lambda rng, _: make(rng))


def _rearrangement(rows: int, length: int, step: int, requests: int, k: int) -> OpCase:
    def arguments(rng: Rng, _: torch.dtype) -> tuple[Any, ...]:
        table = rng.integers(1000, size=(rows, length), dtype=np.int32)
        parents = rng.integers(rows, size=(requests, k), dtype=np.int32)
        return torch.from_numpy(table), torch.from_numpy(parents), step

    return OpCase(f"step={step}-rows={rows}-k={k}", arguments)


CASES: Mapping[str, tuple[OpCase, ...]] = {
    "self_attention": (
        *(_prefixes(t, 4, 3, 8, 63, scaled=False) for t in range(4)),
        *(_prefixes(t, 3, 1, 16, 111, scaled=True) for t in range(3)),
        _prefixes(2, 3, 2, 32, 7, scaled=True, low=True),
        _prefixes(7, 8, 3, 24, 5, scaled=True),
        _prefixes(3, 4, 9, 5, 13, scaled=True),
        _prefixes(3, 4, 7, 256, 3, scaled=False),
    ),
    "cross_attention": (
        _cross("beams=1", lambda rng: _asked(rng, 1, 13)),
        _cross("beams=33", lambda rng: _asked(rng, 33, 13)),
        _cross("one-token-scaled", lambda rng: _asked(rng, 11, 1, scaled=True)),
        _cross("beams=11", lambda rng: _asked(rng, 11, 13), low=True),
        _cross("gathered", lambda rng: _gathered(rng, scaled=False)),
        _cross("gathered-scaled", lambda rng: _gathered(rng, scaled=True)),
        _cross("tokens=65", lambda rng: _wide_context(rng, 7, 2, 65, 24)),
        _cross("tokens=33", lambda rng: _wide_context(rng, 67, 1, 33, 5)),
        _cross("tokens=301", lambda rng: _wide_context(rng, 3, 1, 301, 40)),
        _cross("d=256", lambda rng: _wide_context(rng, 67, 1, 131, 256)),
    ),
    **PROMPT_CASES,
    "row_factors": (_rows(63, 24), _rows(1, 2048), _rows(33, 1000, low=True), _rows(3, 9001)),
    "activate": (
        _activation("relu", 63, 24),
        _activation("gated_gelu", 33, 48),
        _activation("relu", 7, 512, low=True),
        _activation("gated_gelu", 7, 1024, low=True),
        _activation("relu", 3, 1111),
        _activation("gated_gelu", 3, 1402),
        _activation("gated_silu", 33, 48),
    ),
    "eligible_nodes": tuple(_untyped(*case) for case in ELIGIBILITY.items()),
    "admit_children": tuple(_untyped(*case) for case in ADMISSION.items()),
    "select_beams": (
        _choice("in-order", lambda rng: selection_inputs(rng, 5, 11, 63, 60, 37, False)),
        _choice("ordered", lambda rng: selection_inputs(rng, 5, 11, 63, 60, 37, True)),
        _choice("one-beam", lambda rng: selection_inputs(rng, 3, 1, 111, 108, 63, False)),
        _choice("k-above-candidates", lambda rng: selection_inputs(rng, 3, 7, 63, 5, 111, True)),
        _choice("no-candidates", lambda rng: selection_inputs(rng, 3, 7, 63, 0, 5, False)),
        _choice("ties", lambda rng: _tied_selection(rng, ordered=False)),
        _choice("ties-ordered", lambda rng: _tied_selection(rng, ordered=True)),
        _choice("scaled-with-room", lambda rng: _scaled_selection(rng, ordered=False)),
        _choice("scaled-with-room-ordered", lambda rng: _scaled_selection(rng, ordered=True)),
        _choice("dead-everywhere", _dead_everywhere),
        _choice("impossible", _impossible),
        _choice("corrupt", lambda rng: _corrupt(rng, ordered=False)),
        _choice("corrupt-ordered", lambda rng: _corrupt(rng, ordered=True)),
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
