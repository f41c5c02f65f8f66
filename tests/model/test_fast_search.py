"""The fast loop against the plain one, which defines what it must find."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from grace.configs.generation import BeamProfile
from grace.index.matchers.modes import MatcherMode
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, load_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import UserContext
from support.fast_cases import (
    ALL_STEPS,
    DECODERS,
    FastCase,
    fast_case,
    on,
    search_fast,
    search_plainly,
)
from support.op_cases import mapped

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STEP_0_ONLY = 0


@pytest.fixture(autouse=True)
def poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pools come filled with NaN: a block that is read before it is written shows."""
    if request.node.get_closest_marker("gpu"):
        torch.full((1 << 26,), torch.nan, device="cuda")  # what is allocated next lies in it
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are not worth sharing, least beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
def test_it_finds_the_plain_loops_sids_with_their_scores(name: str, seed: int, device: str) -> None:
    case = on(fast_case(name, seed), torch.device(device))
    expected = search_plainly(case, REFERENCE)
    assert (expected.leaves != NO_NODE).any()
    assert_same_sids(search_fast(case, load_ops(torch.device(device))), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DECODERS)
def test_a_memo_of_any_number_of_steps_changes_nothing(name: str, device: str) -> None:
    case = on(fast_case(name, 7), torch.device(device))
    ops = load_ops(torch.device(device))
    expected = search_plainly(case, REFERENCE)
    for memo_bytes in (STEP_0_ONLY, memo_bytes_of_two_steps(case), ALL_STEPS):
        assert_same_sids(search_fast(case, ops, memo_bytes), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MatcherMode)
def test_every_matcher_mode_admits_what_it_admits_plainly(mode: MatcherMode, device: str) -> None:
    case = on(fast_case("L=4-unequal", 3, mode, ads=90), torch.device(device))
    got = search_fast(case, load_ops(torch.device(device)))
    assert_same_sids(got, search_plainly(case, REFERENCE))


@pytest.mark.parametrize("device", DEVICES)
def test_users_for_whom_little_is_eligible_leave_beams_dead(device: str) -> None:
    case = on(fast_case("L=3-gated-scaled", 5, beams=63, ads=40), torch.device(device))
    expected = search_plainly(case, REFERENCE)
    live = (expected.leaves != NO_NODE).sum(dim=1)
    assert 0 < int(live.min()) < 65
    assert_same_sids(search_fast(case, load_ops(torch.device(device))), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_unequal_beams_per_step_and_one_beam_are_no_special_case(device: str) -> None:
    ops = load_ops(torch.device(device))
    case = on(fast_case("L=4-extra-rows", 2), torch.device(device))
    for beams, num_sids in (((1, 1, 1, 1), 1), ((1, 7, 21, 3), 15), ((1, 2, 31, 33), 5)):
        narrow = replace(case, profile=BeamProfile(beams, num_sids))
        assert_same_sids(search_fast(narrow, ops), search_plainly(narrow, REFERENCE))


@pytest.mark.parametrize("device", DEVICES)
def test_a_request_of_not_finite_numbers_is_corrupt_and_touches_no_other(device: str) -> None:
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
def test_a_request_gives_the_same_bits_at_every_row_and_beside_any_neighbours(
    memo_bytes: int, device: str
) -> None:
    torch.set_num_threads(2)
    ops = load_ops(torch.device(device))
    case = fast_case("L=4-unequal", 1, MatcherMode.CD, requests=3)
    whole = search_fast(on(case, torch.device(device)), ops, memo_bytes)
    states, mask = case.context.states.cpu(), case.context.mask.cpu()
    for places in ([1, 2, 0], [2, 0, 1], [1, 1, 2], [0, 2, 2]):
        moved = replace(case, context=UserContext(states[places], mask[places]))
        got = search_fast(on(moved, torch.device(device)), ops, memo_bytes)
        assert torch.equal(got.leaves, whole.leaves[places])
        assert torch.equal(got.scores, whole.scores[places])


def test_users_are_asked_of_the_slot_alone() -> None:
    """The same weights and the same call serve another catalogue and other users."""
    one, other = fast_case("L=4-unequal", 1), fast_case("L=4-unequal", 2)
    mixed = replace(one, users=other.users, index=other.index)
    ops = load_ops(torch.device("cpu"))
    assert_same_sids(search_fast(mixed, ops), search_plainly(mixed, REFERENCE))
    assert not torch.equal(search_fast(mixed, ops).leaves, search_fast(one, ops).leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_a_lower_precision_finds_most_of_the_same_sids(dtype: torch.dtype, device: str) -> None:
    case = on(fast_case("L=4-unequal", 4, MatcherMode.CD, ads=400), torch.device(device))
    ops = load_ops(torch.device(device))
    expected = search_plainly(case, REFERENCE)
    got = mapped(search_fast(case, ops, dtype=dtype), torch.Tensor.cpu)
    same = [
        len(set(a) & set(b)) / len(set(a))
        for a, b in zip(expected.leaves.tolist(), got.leaves.tolist(), strict=True)
    ]
    assert min(same) > 0.5
    assert sum(same) / len(same) > 0.8
    assert not got.corrupt.any()
