"""The fast loop, its weights and its memo of prefixes: they give what the plain loop gives."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, load_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import UserContext
from grace.model.engine.decode_weights import FastWeights, Precision
from grace.model.engine.prefix_memo import PrefixMemo
from support.fast_cases import (
    ALL_STEPS,
    DECODERS,
    FastCase,
    fast_case,
    on,
    search_fast,
    search_plainly,
)
from support.models import random_decoder
from support.op_cases import mapped

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STEP_0_ONLY = 0


@pytest.fixture(autouse=True)
def poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pools start filled with NaN: a block that is read before it is written shows."""
    if request.node.get_closest_marker("gpu"):
        torch.full((1 << 26,), torch.nan, device="cuda")  # later allocations reuse it
        yield
        return
    torch.set_deterministic_debug_mode("warn")
    yield
    torch.set_deterministic_debug_mode("default")


def memo_bytes_of_two_steps(case: FastCase) -> int:
    spec = case.decoder.spec
    return (1 + case.decoder.vocab_sizes[0]) * (spec.d_model + spec.heads * spec.d_head) * 4


def assert_same_sids(got: Generated, expected: Generated) -> None:
    assert torch.equal(got.leaves, expected.leaves)
    assert torch.equal(got.corrupt, expected.corrupt)
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-4, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", DECODERS)
def test_it_finds_the_plain_loops_sids_with_any_memo(name: str, seed: int, device: str) -> None:
    case = on(fast_case(name, seed), torch.device(device))
    ops = load_ops(torch.device(device))
    expected = search_plainly(case, REFERENCE)
    assert (expected.leaves != NO_NODE).any()
    for memo_bytes in (STEP_0_ONLY, memo_bytes_of_two_steps(case), ALL_STEPS):
        assert_same_sids(search_fast(case, ops, memo_bytes), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("beams", "num_sids"),
    [((1, 1, 1, 1), 1), ((1, 7, 21, 3), 15), ((1, 2, 31, 33), 5), ((1, 63, 63, 63), 65)],
    ids=str,
)
def test_one_beam_unequal_beams_and_more_beams_than_sids_give_the_plain_search_s_sids(
    beams: tuple[int, ...], num_sids: int, device: str
) -> None:
    case = on(fast_case("L=4-extra-rows", 2), torch.device(device))
    case = replace(case, profile=BeamProfile(beams, num_sids))
    expected = search_plainly(case, REFERENCE)
    live = (expected.leaves != NO_NODE).sum(dim=1)
    assert live.max() > 0
    assert num_sids < 65 or live.min() < 65
    assert_same_sids(search_fast(case, load_ops(torch.device(device))), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_request_of_infinite_or_nan_numbers_is_corrupt_and_changes_no_other(device: str) -> None:
    ops = load_ops(torch.device(device))
    case = on(fast_case("L=4-unequal", 3, users=[{}] * 4), torch.device(device))
    clean = search_fast(case, ops)
    case.context.states[1] = torch.nan
    got = search_fast(case, ops)
    assert not clean.corrupt.any()
    assert got.corrupt.tolist() == [False, True, False, False]
    assert (got.leaves[1] == NO_NODE).all()
    assert (got.scores[1] == -torch.inf).all()
    others = [0, 2, 3]
    assert torch.equal(got.leaves[others], clean.leaves[others])
    assert torch.equal(got.scores[others], clean.scores[others])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memo_bytes", [STEP_0_ONLY, ALL_STEPS], ids=["no-memo", "memo"])
def test_a_request_gives_the_same_bits_at_every_row_with_any_neighbours(
    memo_bytes: int, device: str
) -> None:
    torch.set_num_threads(2)
    ops = load_ops(torch.device(device))
    case = fast_case("L=4-unequal", 1, MatcherMode.CD, requests=3)
    whole = search_fast(on(case, torch.device(device)), ops, memo_bytes)
    states, mask = case.context.states.cpu(), case.context.mask.cpu()
    for places in ([2, 0, 1], [1, 1, 2]):
        moved = replace(case, context=UserContext(states[places], mask[places]))
        got = search_fast(on(moved, torch.device(device)), ops, memo_bytes)
        assert torch.equal(got.leaves, whole.leaves[places])
        assert torch.equal(got.scores, whole.scores[places])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_finds_most_of_the_same_sids(precision: Precision, device: str) -> None:
    case = on(fast_case("L=4-unequal", 4, MatcherMode.CD, ads=400), torch.device(device))
    ops = load_ops(torch.device(device))
    expected = search_plainly(case, REFERENCE)
    got = mapped(search_fast(case, ops, precision=precision), torch.Tensor.cpu)
    same = [
        len(set(a) & set(b)) / len(set(a))
        for a, b in zip(expected.leaves.tolist(), got.leaves.tolist(), strict=True)
    ]
    assert min(same) > 0.5
    assert sum(same) / len(same) > 0.8
    assert not got.corrupt.any()


def test_a_memo_takes_as_many_steps_as_fit_and_always_the_first() -> None:
    spec, vocab_sizes = DECODERS["L=4-unequal"]
    weights = FastWeights.of(random_decoder(spec, vocab_sizes, 13, seed=2))
    row = (spec.d_model + spec.heads * spec.d_head) * 2
    sizes = [row, 5 * row, 5 * 13 * row, 5 * 13 * 3 * row]

    def steps_within(memo_bytes: int) -> int:
        memo = PrefixMemo.build(weights, torch.bfloat16, memo_bytes, REFERENCE)
        assert memo.size == sum(sizes[: memo.steps])
        assert memo.states[0].dtype == memo.queries[-1].dtype == torch.bfloat16
        return memo.steps

    assert steps_within(0) == 1
    assert [steps_within(sum(sizes[:n])) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert [steps_within(sum(sizes[:n]) - 1) for n in (2, 3, 4)] == [1, 2, 3]


def test_a_memo_does_not_depend_on_the_number_of_rows_computed_at_once() -> None:
    spec, vocab_sizes = DECODERS["L=4-unequal"]
    weights = FastWeights.of(random_decoder(spec, vocab_sizes, 13, seed=3))
    whole = PrefixMemo.build(weights, torch.float32, ALL_STEPS, REFERENCE)
    parts = PrefixMemo.build(weights, torch.float32, ALL_STEPS, REFERENCE, rows_at_once=17)
    for one, other in zip(whole.states + whole.queries, parts.states + parts.queries, strict=True):
        assert torch.equal(one, other)
