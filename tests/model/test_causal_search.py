"""The fast causal decoder finds the SIDs of the definition, for prompts of all lengths."""

import pytest
import torch

from grace.index.trie import NO_NODE
from grace.kernels import load_ops
from grace.model.engine.decode_weights import Precision
from support.causal_searches import CAUSAL, WIDE, causal_case, causal_fast, causal_plainly, on
from support.fast_cases import assert_same_sids

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CAUSAL)
def test_it_finds_the_plain_loops_sids(name: str, seed: int, device: str) -> None:
    lengths = {"L=1": (1, 3, 2)}.get(name, (5, 1, 23, 16, 2))
    case = causal_case(CAUSAL[name], seed, lengths)
    expected = causal_plainly(case)
    assert (expected.leaves != NO_NODE).any()
    there = on(case, torch.device(device))
    assert_same_sids(causal_fast(there, load_ops(torch.device(device))), expected)


@DEVICES
@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.9), ("fp8", 0.75)])
def test_lower_precisions_keep_most_sids(precision: Precision, share: float, device: str) -> None:
    """Random weights have many SIDs of nearly equal score, which rounding exchanges."""
    case = causal_case(WIDE, 3, (31, 1, 64, 7), beams=63, ads=900)
    expected = causal_plainly(case)
    there = torch.device(device)
    got = causal_fast(on(case, there), load_ops(there), precision)
    assert not got.corrupt.any()
    for own, others in zip(got.leaves.tolist(), expected.leaves.tolist(), strict=True):
        live = {leaf for leaf in others if leaf >= 0}
        assert len(live & {*own}) >= share * len(live)
