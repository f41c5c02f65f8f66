"""The fast causal decoder finds the SIDs of the definition, for prompts of all lengths."""

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grace.configs.generation import GenerationConfig
from grace.index.trie import NO_NODE
from grace.kernels import load_ops
from grace.model.engine.causal.memory import memory_of_weights, memory_on_cpu
from grace.model.engine.precision import Precision
from support.causal_searches import (
    CAUSAL,
    WIDE,
    causal_case,
    causal_fast,
    causal_plainly,
    on,
    spec_of,
)
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


@pytest.mark.parametrize("case", [("level", 9, 301, 9), ("all", 2, 9, 101), ("level", 1, 301, 9)])
def test_a_search_takes_at_most_the_planned_memory(case: tuple[str, int, int, int]) -> None:
    normalizer, layers, longest, beams = case
    causal = replace(CAUSAL["qwen3-level"].causal, layers=layers, num_tokens=900)
    spec = spec_of(causal, (63, 31, 15), longest, normalizer)
    asked = causal_case(spec, 3, (longest,) * 7, beams)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        causal_plainly(asked)
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda each: each.start_ns())
    changes = (each.nbytes() for each in events if each.name() == "[memory]")
    peak = memory_of_weights(spec) + max(accumulate(changes))
    planned = memory_on_cpu(spec, GenerationConfig(7, {"full": asked.profile}))
    assert peak <= planned <= 3 * peak
