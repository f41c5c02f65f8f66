"""The CUDA kernels as a GPU without code of its own runs them: no clusters, whatever it is."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from grace.kernels import REFERENCE
from grace.kernels.decode.admit_children_cuda import admit_children_cuda
from grace.kernels.decode.select_beams_cuda import select_beams_cuda
from support.emulated_cuda import PORTABLE, emulated_cuda
from support.hard_inputs import full_rows
from support.op_cases import CASES, OpCase

pytestmark = pytest.mark.subprocess  # the first of them runs the compiler


@pytest.fixture(autouse=True, scope="module")
def on_the_host() -> Iterator[None]:
    with emulated_cuda(PORTABLE):
        yield


@pytest.mark.parametrize("case", CASES["select_beams"], ids=lambda case: case.name)
def test_blocks_by_themselves_select_what_the_reference_selects(case: OpCase) -> None:
    arguments = case.arguments(np.random.default_rng(7))
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    for name in ("parents", "tokens", "nodes", "corrupt"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("requests", [1, 3])
def test_no_cluster_is_started_for_as_many_beams_as_want_one(requests: int) -> None:
    """Each of its blocks would take another request, of which there are not so many."""
    rng, beams = np.random.default_rng(3), 111
    logits = np.tile(rng.permutation(9).astype(np.float32) / 1024, (requests * beams, 1))
    scores = np.array([-rng.permutation(beams) / 64 for _ in range(requests)], np.float32)
    candidates = full_rows(requests, beams, 9, 9)
    arguments = (torch.from_numpy(logits), torch.from_numpy(scores), candidates, 63, True)
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    for name in ("parents", "tokens", "nodes"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES["admit_children"], ids=lambda case: case.name)
def test_admission_is_the_same(case: OpCase) -> None:
    nodes, users, index = case.arguments(np.random.default_rng(7))
    got = admit_children_cuda(nodes, users, index).packed()
    expected = REFERENCE.admit_children(nodes, users, index).packed()
    assert torch.equal(got.offsets, expected.offsets)
    assert torch.equal(got.tokens, expected.tokens)
    assert torch.equal(got.nodes, expected.nodes)
