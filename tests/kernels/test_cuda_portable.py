"""Selection by the portable code, which has no clusters: every GPU except Hopper runs it.

Admission has no code that depends on the architecture.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from grace.kernels import REFERENCE
from grace.kernels.decode.select_beams_cuda import select_beams_cuda
from support.decode_cases import assert_same_beams
from support.emulated_cuda import PORTABLE, emulated_cuda
from support.hard_inputs import full_rows
from support.op_cases import CASES, OpCase

pytestmark = pytest.mark.subprocess  # the first of them runs the compiler


@pytest.fixture(autouse=True, scope="module")
def on_the_host() -> Iterator[None]:
    with emulated_cuda(PORTABLE):
        yield


@pytest.mark.parametrize("case", CASES["select_beams"], ids=lambda case: case.name)
def test_blocks_without_clusters_select_what_the_reference_selects(case: OpCase) -> None:
    arguments = case.arguments(np.random.default_rng(7))
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    assert_same_beams(got, expected)


@pytest.mark.parametrize("requests", [1, 3])
def test_many_beams_start_no_cluster(requests: int) -> None:
    """Each block of a cluster would take another request, and there are too few."""
    rng, beams = np.random.default_rng(3), 111
    logits = np.tile(rng.permutation(9).astype(np.float32) / 1024, (requests * beams, 1))
    scores = np.array([-rng.permutation(beams) / 64 for _ in range(requests)], np.float32)
    candidates = full_rows(requests, beams, 9, 9)
    arguments = (torch.from_numpy(logits), torch.from_numpy(scores), candidates, 63, True)
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    assert_same_beams(got, expected)
