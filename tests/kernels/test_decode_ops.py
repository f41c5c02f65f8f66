"""The decoder's references in every case, against their formulas over lists of Python numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import NO_BLOCK, REFERENCE, Beams
from grace.kernels.decode.cross_attention import BeamQueries
from grace.kernels.decode.select_beams import Choice
from grace.kernels.decode.self_attention import PagedPrefixes, self_attention_reference
from support.decode_cases import split_rows
from support.op_cases import CASES, OpCase

Kept = tuple[int, int, int, float]  # parent, token, node, score


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mixed(scores: Sequence[float], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of the values, weighted by the exponentials of their scores."""
    weights = [math.exp(score - max(scores)) for score in scores]
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
    queries, factors = given.queries.tolist(), [1.0] * given.rows
    if given.query_rows is not None:
        queries = [queries[row] for row in given.query_rows.tolist()]
    if given.row_scale is not None:
        factors = given.row_scale.tolist()
    rows = []
    for number, query in enumerate(queries):
        request = number // (given.rows // requests)
        present = [t for t, there in enumerate(mask[request]) if there]
        row: list[float] = []
        for head in range(heads):
            q, keys = query[head * d : (head + 1) * d], k[request][head]
            scores = [given.scale * factors[number] * dot(q, keys[t]) for t in present]
            row += mixed(scores, [v[request][head][t] for t in present]) if present else [0.0] * d
        rows.append(row)
    return torch.tensor(rows)


def plain_factors(x: Tensor, eps: float) -> Tensor:
    return torch.tensor([1 / math.sqrt(dot(row, row) / len(row) + eps) for row in x.tolist()])


def plain_rearranged(table: Tensor, parents: Tensor, step: int) -> Tensor:
    old, own, length = table.tolist(), parents.flatten().tolist(), table.shape[1]
    rows = [[old[p][j] if j <= step else NO_BLOCK for j in range(length)] for p in own]
    return torch.tensor(rows, dtype=torch.int32)


def plain_choice(given: Choice) -> Beams:
    """Keep what is best; a request with a score that is NaN or +inf has dead beams only."""
    requests, beams = given.scores.shape
    rows, kept, corrupt = split_rows(given.candidates.packed()), [], []
    for request in range(requests):
        found: list[Kept] = []
        for row in range(request * beams, (request + 1) * beams):
            totals = plain_totals(given, row)
            found += [(row, token, node, totals[token]) for token, node in rows[row]]
        corrupt.append(any(math.isnan(each[3]) or each[3] == math.inf for each in found))
        found = [each for each in found if each[3] > -math.inf and not corrupt[-1]]
        best = sorted(range(len(found)), key=lambda at: (-found[at][3], at))[: given.k]
        chosen = [found[at] for at in (best if given.ordered else sorted(best))]
        dead = (request * beams, 0, NO_NODE, -math.inf)
        kept.append(chosen + [dead] * (given.k - len(chosen)))
    columns = [[[each[part] for each in own] for own in kept] for part in range(4)]
    *integers, scores = (torch.tensor(column) for column in columns)
    parents, tokens, nodes = (each.int() for each in integers)
    return Beams(parents, tokens, nodes, scores.float(), torch.tensor(corrupt))


def plain_totals(given: Choice, row: int) -> list[float]:
    """Return the score of each token after a beam row."""
    factor = 1.0 if given.row_scale is None else float(given.row_scale[row])
    logits = [factor * logit for logit in given.logits[row].tolist()]
    if any(math.isnan(logit) or logit == math.inf for logit in logits):
        return [math.nan] * len(logits)
    own = float(given.scores.flatten()[row]) - math.log(sum(map(math.exp, logits)))
    return [own + logit for logit in logits]


PLAIN: Mapping[str, Callable[..., Any]] = {
    "self_attention": plain_self,
    "cross_attention": plain_cross,
    "row_factors": plain_factors,
    "select_beams": plain_choice,
    "rearrange": plain_rearranged,
}


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in PLAIN for case in CASES[name]],
    ids=lambda value: value.name if isinstance(value, OpCase) else value,
)
def test_a_reference_computes_its_formula(name: str, case: OpCase) -> None:
    arguments = case.arguments(np.random.default_rng(7), torch.float32)
    got, expected = getattr(REFERENCE, name)(*arguments), PLAIN[name](*arguments)
    pairs = [(got, expected)]
    if isinstance(got, Beams):
        pairs = [(getattr(got, x.name), getattr(expected, x.name)) for x in fields(Beams)]
    for one, other in pairs:
        exact = 0.0 if one.dtype in (torch.int32, torch.bool) else 1e-5
        torch.testing.assert_close(one, other, rtol=exact, atol=exact)


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
