"""The decoder's references against their formulas, over lists of Python numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import NO_BLOCK, Beams, Candidates
from grace.kernels.decode.cross_attention import BeamQueries, cross_attention_reference
from grace.kernels.decode.select_beams import Choice, select_beams_reference
from grace.kernels.decode.self_attention import (
    PagedPrefixes,
    rearrange_reference,
    self_attention_reference,
)
from support.decode_cases import split_rows
from support.op_cases import (
    attention_pool,
    cross_inputs,
    normal,
    row_scales,
    selection_inputs,
    tied_selection_inputs,
)

Kept = list[tuple[int, int, int, float]]
ordering = pytest.mark.parametrize("ordered", [False, True], ids=["in-order", "ordered"])
widths = pytest.mark.parametrize("k", [1, 7, 63, 500], ids=lambda k: f"k={k}")


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mixed(scores: Sequence[float], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of the values, weighted by the exponentials of their scores."""
    weights = [math.exp(score) for score in scores]
    return [dot(weights, column) / sum(weights) for column in zip(*values, strict=True)]


def plain_self(given: PagedPrefixes) -> Tensor:
    pool, step, rows = given.pool, given.step, []
    scales = torch.ones(len(pool)) if given.row_scale is None else given.row_scale
    blocks: list[Any] = (pool * scales[:, None, None, None]).tolist()
    for prefix in given.table[:, : step + 1].tolist():
        row: list[float] = []
        for head in range(pool.shape[2]):
            q, k, v = ([blocks[b][kind][head] for b in prefix] for kind in range(3))
            biases = [float(given.bias[head, step - j]) for j in range(step + 1)]
            scores = [given.scale * dot(q[step], k[j]) + biases[j] for j in range(step + 1)]
            row += mixed(scores, v)
        rows.append(row)
    return torch.tensor(rows)


def plain_cross(given: BeamQueries) -> Tensor:
    requests, heads, _, d = given.keys.shape
    k, v, mask = given.keys.tolist(), given.values.tolist(), given.key_mask.tolist()
    factors = [1.0] * given.rows if given.row_scale is None else given.row_scale.tolist()
    rows = []
    for number, query in enumerate(given.queries.tolist()):
        request = number // (given.rows // requests)
        present = [t for t, there in enumerate(mask[request]) if there]
        row: list[float] = []
        for head in range(heads):
            q, keys = query[head * d : (head + 1) * d], k[request][head]
            scores = [given.scale * factors[number] * dot(q, keys[t]) for t in present]
            row += mixed(scores, [v[request][head][t] for t in present]) if present else [0.0] * d
        rows.append(row)
    return torch.tensor(rows)


def plain_choice(given: Choice) -> list[Kept]:
    """Return the kept (parent, token, node, score) of each request, dead ones at the end."""
    requests, beams = given.scores.shape
    rows, logits, kept = split_rows(given.candidates), given.logits.tolist(), []
    for request in range(requests):
        found: Kept = []
        for row in range(request * beams, (request + 1) * beams):
            log_sum = math.log(sum(map(math.exp, logits[row])))
            own = float(given.scores[request, row - request * beams]) - log_sum
            found += [(row, token, node, own + logits[row][token]) for token, node in rows[row]]
        best = sorted(range(len(found)), key=lambda at: (-found[at][3], at))[: given.k]
        chosen = [found[at] for at in (best if given.ordered else sorted(best))]
        kept.append(chosen + [dead(request * beams)] * (given.k - len(chosen)))
    return kept


def dead(parent: int) -> tuple[int, int, int, float]:
    return (parent, 0, NO_NODE, -math.inf)


def listed(beams: Beams) -> list[Kept]:
    columns = [x.tolist() for x in (beams.parents, beams.tokens, beams.nodes, beams.scores)]
    return [list(zip(*request, strict=True)) for request in zip(*columns, strict=True)]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("step", range(4), ids=lambda step: f"step={step}")
def test_a_row_attends_to_its_own_prefix(step: int, scaled: bool) -> None:
    rng = np.random.default_rng(step)
    pool, table = attention_pool(rng, rows=11, length=4, step=step, heads=3, d_head=5)
    factors = row_scales(rng, len(pool)) if scaled else None
    given = PagedPrefixes(pool, table, step, normal(rng, 3, 4), 0.7, factors)
    torch.testing.assert_close(self_attention_reference(given), plain_self(given))


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("beams", [1, 5], ids=lambda beams: f"beams={beams}")
@pytest.mark.parametrize("tokens", [1, 13], ids=lambda tokens: f"tokens={tokens}")
def test_beams_attend_to_the_present_keys_of_their_request(
    beams: int, tokens: int, scaled: bool
) -> None:
    rng = np.random.default_rng(tokens)
    given = cross_inputs(rng, 3, beams, heads=2, tokens=tokens, d_head=5, scale=0.7)
    given = replace(given, row_scale=row_scales(rng, 3 * beams) if scaled else None)
    torch.testing.assert_close(cross_attention_reference(given), plain_cross(given))


def selection(rng: np.random.Generator, k: int, ordered: bool, tied: bool) -> Choice:
    if tied:
        return tied_selection_inputs(rng, 5, 11, 37, k, ordered)
    return selection_inputs(rng, 5, 11, 63, 60, k, ordered)


@ordering
@widths
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_the_best_are_kept_and_ties_go_to_the_lower_row_then_token(
    k: int, ordered: bool, tied: bool
) -> None:
    given = selection(np.random.default_rng(k), k, ordered, tied)
    beams = select_beams_reference(given)
    for got, wanted in zip(listed(beams), plain_choice(given), strict=True):
        assert [item[:3] for item in got] == [item[:3] for item in wanted]
        assert [item[3] for item in got] == pytest.approx([item[3] for item in wanted], abs=1e-5)
    assert beams.scores.dtype == torch.float32
    assert {beams.parents.dtype, beams.tokens.dtype, beams.nodes.dtype} == {torch.int32}


@pytest.mark.parametrize("step", range(4), ids=lambda step: f"step={step}")
def test_a_new_row_has_its_parents_blocks_up_to_the_step(step: int) -> None:
    rng = np.random.default_rng(step)
    table = torch.from_numpy(rng.integers(1000, size=(33, 4), dtype=np.int32))
    parents = torch.from_numpy(rng.integers(33, size=(3, 7), dtype=np.int32))
    old, own = table.tolist(), parents.flatten().tolist()
    expected = [[old[p][j] if j <= step else NO_BLOCK for j in range(4)] for p in own]
    got = rearrange_reference(table, parents, step)
    assert got.tolist() == expected
    assert got.dtype == torch.int32


@pytest.mark.parametrize(
    ("requests", "beams", "heads", "tokens", "d_head"),
    [(5, 7, 2, 13, 8), (8, 3, 2, 13, 32), (7, 7, 3, 5, 32), (7, 1, 3, 64, 17), (8, 63, 3, 64, 5)],
)
def test_a_request_attends_with_the_same_bits_at_any_place_of_a_batch(
    requests: int, beams: int, heads: int, tokens: int, d_head: int
) -> None:
    """Plain matrix products on a CPU fail this for such shapes."""
    rng = np.random.default_rng(3)
    given = cross_inputs(rng, requests, beams, heads, tokens, d_head, scale=1.0)
    whole = cross_attention_reference(given).view(requests, beams, -1)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(requests))
        moved = replace(
            given,
            queries=given.queries.view(requests, beams, -1)[order].flatten(0, 1),
            keys=given.keys[order],
            values=given.values[order],
            key_mask=given.key_mask[order],
        )
        assert torch.equal(cross_attention_reference(moved).view(whole.shape), whole[order])


@pytest.mark.parametrize("heads", [3, 16, 20])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_prefix_gives_the_same_bits_at_every_row(heads: int, threads: int) -> None:
    """Five equal requests of 37 rows, each with own blocks."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(heads)
        pool = torch.randn(148, 3, heads, 8, generator=generator).repeat(5, 1, 1, 1)
        table = torch.randint(148, (37, 4), generator=generator)
        tables = torch.cat([table + 148 * request for request in range(5)]).int()
        bias = torch.randn(heads, 4, generator=generator)
        given = PagedPrefixes(pool, tables, 3, bias, 0.3)
        found = self_attention_reference(given).view(5, -1)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(request, found[0]) for request in found)


def candidates_of(children: list[list[int]]) -> Candidates:
    """A token's node is 100 * row + token."""
    offsets = np.cumsum([0, *map(len, children)]).astype(np.int32)
    pairs = [(token, 100 * row + token) for row, own in enumerate(children) for token in own]
    tokens, nodes = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2).T.contiguous()
    return Candidates(torch.from_numpy(offsets), tokens, nodes)


@ordering
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["candidate", "column without candidate", "score"])
def test_a_corrupt_number_kills_its_request_and_no_other(
    where: str, value: float, ordered: bool
) -> None:
    given = selection_inputs(np.random.default_rng(5), 3, 11, 63, 60, 37, ordered)
    given = replace(given, candidates=candidates_of([[1, 2]] * 33))
    expected = listed(select_beams_reference(given))
    if where == "score":
        given.scores[1, 10] = value
    else:
        given.logits[11 + 7, 1 if where == "candidate" else 62] = value
    beams = select_beams_reference(given)
    expected[1] = [dead(11)] * given.k
    assert listed(beams) == expected
    assert beams.corrupt.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("logits", "scores", "children", "kept"),
    [
        ([[math.nan] * 2, [0.0, 1.0]], [-math.inf, 0.0], [[], [0, 1]], [101, 100]),
        ([[-math.inf, 0.0, 0.0]], [0.0], [[0, 1]], [1, NO_NODE]),
    ],
    ids=["a row without candidates may have any logits", "probability zero is not kept"],
)
def test_numbers_that_no_candidate_has_do_not_matter(
    logits: list[list[float]], scores: list[float], children: list[list[int]], kept: list[int]
) -> None:
    given = Choice(
        torch.tensor(logits), torch.tensor([scores]), candidates_of(children), 2, ordered=True
    )
    beams = select_beams_reference(given)
    assert beams.nodes.tolist() == [kept]
    assert not beams.corrupt.any()
