"""Selection against its definition: sort all candidates of a request, keep the first k."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels import Beams, Candidates
from grace.kernels.decode.select_beams import select_beams_reference
from support.decode_cases import split_rows
from support.op_cases import selection_inputs, tied_selection_inputs

ordering = pytest.mark.parametrize("ordered", [False, True], ids=["in-order", "ordered"])


def plain(
    logits: Tensor, scores: Tensor, candidates: Candidates, k: int, ordered: bool
) -> list[list[tuple[int, int, int, float]]]:
    """Return the kept (parent, token, node, score) of each request, dead ones at the end."""
    requests, beams = scores.shape
    rows = split_rows(candidates)
    kept = []
    for request in range(requests):
        found = []
        for row in range(request * beams, (request + 1) * beams):
            log_sum = math.log(sum(math.exp(x) for x in logits[row].tolist()))
            own = float(scores[request, row - request * beams])
            found += [
                (row, token, node, own + float(logits[row, token]) - log_sum)
                for token, node in rows[row]
            ]
        best = sorted(range(len(found)), key=lambda at: (-found[at][3], at))[:k]
        chosen = [found[at] for at in (best if ordered else sorted(best))]
        dead = (request * beams, 0, NO_NODE, -math.inf)
        kept.append(chosen + [dead] * (k - len(chosen)))
    return kept


def listed(beams: Beams) -> list[list[tuple[int, int, int, float]]]:
    columns = [x.tolist() for x in (beams.parents, beams.tokens, beams.nodes, beams.scores)]
    return [list(zip(*request, strict=True)) for request in zip(*columns, strict=True)]


def assert_selects_as_defined(arguments: tuple[Any, ...]) -> None:
    beams = select_beams_reference(*arguments)
    expected = plain(*arguments)
    for got, wanted in zip(listed(beams), expected, strict=True):
        assert [item[:3] for item in got] == [item[:3] for item in wanted]
        assert [item[3] for item in got] == pytest.approx([item[3] for item in wanted], abs=1e-5)
    assert beams.scores.dtype == torch.float32
    assert {beams.parents.dtype, beams.tokens.dtype, beams.nodes.dtype} == {torch.int32}


@ordering
@pytest.mark.parametrize("k", [1, 7, 63, 500], ids=lambda k: f"k={k}")
def test_the_best_of_each_request_are_kept(k: int, ordered: bool) -> None:
    rng = np.random.default_rng(k)
    assert_selects_as_defined(selection_inputs(rng, 5, 11, 63, 60, k, ordered))


@ordering
@pytest.mark.parametrize("k", [1, 7, 63, 500], ids=lambda k: f"k={k}")
def test_ties_go_to_the_lower_beam_row_then_to_the_lower_token(k: int, ordered: bool) -> None:
    rng = np.random.default_rng(k)
    assert_selects_as_defined(tied_selection_inputs(rng, 5, 11, 37, k, ordered))


def one_request(
    logits: list[list[float]], children: list[list[int]]
) -> tuple[Tensor, Tensor, Candidates]:
    """Beams of score 0; a token's node is 100 * row + token."""
    return torch.tensor(logits), torch.zeros(1, len(logits)), candidates_of(children)


def candidates_of(children: list[list[int]]) -> Candidates:
    offsets = np.cumsum([0, *map(len, children)]).astype(np.int32)
    pairs = [(token, 100 * row + token) for row, own in enumerate(children) for token in own]
    tokens, nodes = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2).T.contiguous()
    return Candidates(torch.from_numpy(offsets), tokens, nodes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits, *rest = selection_inputs(np.random.default_rng(3), 3, 7, 63, 60, 37, True)
    low = select_beams_reference(logits.to(dtype), *rest)
    assert torch.equal(low.scores, select_beams_reference(logits.to(dtype).float(), *rest).scores)


@ordering
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["candidate", "column without candidate", "score"])
def test_a_corrupt_number_kills_its_request_and_no_other(
    where: str, value: float, ordered: bool
) -> None:
    rng = np.random.default_rng(5)
    logits, scores, _, k, _ = selection_inputs(rng, 3, 11, 63, 60, 37, ordered)
    candidates = candidates_of([[1, 2]] * 33)
    expected = listed(select_beams_reference(logits, scores, candidates, k, ordered))
    if where == "score":
        scores[1, 10] = value
    else:
        logits[11 + 7, 1 if where == "candidate" else 62] = value
    beams = select_beams_reference(logits, scores, candidates, k, ordered)
    expected[1] = [(11, 0, NO_NODE, -math.inf)] * k
    assert listed(beams) == expected
    assert beams.corrupt.tolist() == [False, True, False]


def test_rows_without_candidates_may_have_any_logits() -> None:
    logits, scores, candidates = one_request([[math.nan] * 2, [0.0, 1.0]], [[], [0, 1]])
    scores[0, 0] = -math.inf
    beams = select_beams_reference(logits, scores, candidates, 2, True)
    assert beams.nodes.tolist() == [[101, 100]]
    assert not beams.corrupt.any()


def test_a_candidate_of_probability_zero_is_not_kept() -> None:
    arguments = one_request([[-math.inf, 0.0, 0.0]], [[0, 1]])
    assert select_beams_reference(*arguments, 2, False).nodes.tolist() == [[1, NO_NODE]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(6)}, r"scores must be \[requests, beams >= 1\], got \[6\]"),
        ({"scores": torch.zeros(2, 3).double()}, "scores must be float32, got float64"),
        ({"logits": torch.zeros(5, 7)}, r"logits must be \[rows, columns\] = \[6, 7\], got \[5, 7"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"offsets": torch.zeros(5).int()}, r"candidates.offsets must be .* = \[7\], got \[5\]"),
        ({"nodes": torch.zeros(3).int()}, r"candidates.nodes must be .* = \[4\], got \[3\]"),
        ({"tokens": torch.tensor([0, 7, 1, 2]).int()}, "tokens reach 7, logits have 7 columns on"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    candidates = Candidates(
        torch.tensor([0, 1, 2, 4, 4, 4, 4]).int(), torch.zeros(4).int(), torch.zeros(4).int()
    )
    parts = {name: change[name] for name in ("offsets", "tokens", "nodes") if name in change}
    arguments: dict[str, Any] = {"logits": torch.zeros(6, 7), "scores": torch.zeros(2, 3)}
    arguments |= {"k": 5, "ordered": False}
    arguments |= {name: value for name, value in change.items() if name not in parts}
    with pytest.raises(ValueError, match=message):
        select_beams_reference(candidates=replace(candidates, **parts), **arguments)
