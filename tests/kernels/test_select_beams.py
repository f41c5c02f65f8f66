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


def test_the_defined_order_in_a_small_example() -> None:
    inputs = one_request([[0.0, 5.0, 3.0], [0.0, 5.0, 3.0]], [[0, 1, 2], [1, 2]])
    assert select_beams_reference(*inputs, 3, False).nodes.tolist() == [[1, 2, 101]]
    assert select_beams_reference(*inputs, 3, True).nodes.tolist() == [[1, 101, 2]]
    assert select_beams_reference(*inputs, 4, False).parents.tolist() == [[0, 0, 1, 1]]
    assert select_beams_reference(*inputs, 7, True).nodes.tolist() == [
        [1, 101, 2, 102, 0, NO_NODE, NO_NODE]
    ]


@ordering
def test_missing_beams_are_dead_and_last(ordered: bool) -> None:
    arguments = selection_inputs(np.random.default_rng(1), 3, 7, 63, 3, 37, ordered)
    beams = select_beams_reference(*arguments)
    dead = beams.nodes == NO_NODE
    assert dead[0].all()  # this request has no candidate
    assert 0 < int(dead[1].sum()) < 37
    assert (beams.scores[dead] == -torch.inf).all()
    assert (beams.tokens[dead] == 0).all()
    assert beams.parents[dead].tolist() == (7 * dead.nonzero()[:, 0]).tolist()
    assert beams.scores[~dead].isfinite().all()
    assert torch.equal(dead.int().sort(dim=1).values.bool(), dead)


def test_columns_beyond_the_vocabulary_only_enter_the_normaliser() -> None:
    few = one_request([[1.0, 2.0]], [[0, 1]])
    more = one_request([[1.0, 2.0, 7.0]], [[0, 1]])
    gap = math.log(sum(map(math.exp, [1, 2, 7]))) - math.log(sum(map(math.exp, [1, 2])))
    kept = select_beams_reference(*few, 2, True)
    lower = select_beams_reference(*more, 2, True)
    assert torch.equal(kept.nodes, lower.nodes)
    torch.testing.assert_close(kept.scores - lower.scores, torch.full((1, 2), gap))


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(2)
    logits = torch.from_numpy(rng.standard_normal((33, 63), dtype=np.float32))
    _, scores, candidates, k, _ = selection_inputs(rng, 3, 11, 63, 60, 37, True)
    whole = select_beams_reference(logits, scores, candidates, k, True)
    begin, end = candidates.offsets[[22, 33]].tolist()
    alone = Candidates(
        candidates.offsets[22:] - begin, candidates.tokens[begin:end], candidates.nodes[begin:end]
    )
    one = select_beams_reference(logits[22:], scores[2:], alone, k, True)
    assert torch.equal(one.scores[0], whole.scores[2])
    assert torch.equal(one.nodes[0], whole.nodes[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits, *rest = selection_inputs(np.random.default_rng(3), 3, 7, 63, 60, 37, True)
    low = select_beams_reference(logits.to(dtype), *rest)
    assert torch.equal(low.scores, select_beams_reference(logits.to(dtype).float(), *rest).scores)


@ordering
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("column", [1, 62], ids=["candidate", "no-candidate"])
def test_a_corrupt_logit_kills_its_request_and_no_other(
    column: int, value: float, ordered: bool
) -> None:
    rng = np.random.default_rng(5)
    logits, scores, _, k, _ = selection_inputs(rng, 3, 11, 63, 60, 37, ordered)
    candidates = candidates_of([[1, 2]] * 33)
    clean = select_beams_reference(logits, scores, candidates, k, ordered)
    logits[11 + 7, column] = value
    beams = select_beams_reference(logits, scores, candidates, k, ordered)
    assert not clean.corrupt.any()
    assert_only_the_second_is_corrupt(beams, clean)


@ordering
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_corrupt_score_kills_its_request_and_no_other(value: float, ordered: bool) -> None:
    rng = np.random.default_rng(6)
    logits, scores, _, k, _ = selection_inputs(rng, 3, 11, 63, 60, 37, ordered)
    candidates = candidates_of([[1, 2]] * 33)
    clean = select_beams_reference(logits, scores, candidates, k, ordered)
    scores[1, 10] = value
    assert_only_the_second_is_corrupt(
        select_beams_reference(logits, scores, candidates, k, ordered), clean
    )


def assert_only_the_second_is_corrupt(beams: Beams, clean: Beams) -> None:
    assert beams.corrupt.tolist() == [False, True, False]
    assert (beams.nodes[1] == NO_NODE).all()
    assert (beams.scores[1] == -torch.inf).all()
    assert (beams.tokens[1] == 0).all()
    assert (beams.parents[1] == 11).all()
    for one, other in zip(parts_of(beams), parts_of(clean), strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])


def parts_of(beams: Beams) -> tuple[Tensor, ...]:
    return beams.parents, beams.tokens, beams.nodes, beams.scores


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
