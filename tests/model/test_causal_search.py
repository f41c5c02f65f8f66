"""The fast causal decoder finds the SIDs of the definition, for prompts of all lengths.

On a GPU also: recorded generation, vocabularies of all sizes, the memory of a load.
"""

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grace.configs.generation import BeamProfile, GenerationConfig
from grace.index.trie import NO_NODE
from grace.kernels import load_ops
from grace.model.engine.causal.generation import CausalGeneration
from grace.model.engine.causal.memory import memory_of_weights, memory_on_cpu, memory_on_gpu
from grace.model.engine.feature_stage import PromptStage
from grace.model.engine.generation import EngineSettings
from grace.model.engine.graph_generation import GraphGeneration
from grace.model.engine.precision import Precision
from support.causal_searches import (
    CAUSAL,
    WIDE,
    CausalCase,
    causal_case,
    causal_fast,
    causal_plainly,
    on,
    spec_of,
)
from support.fast_cases import assert_same_sids

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
GPU = torch.device("cuda", 0)
PROFILES = (BeamProfile((1, 31, 63), 63), BeamProfile((1, 7, 7), 9))


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


def recorded(
    case: CausalCase, precision: Precision, most: int
) -> tuple[CausalGeneration, GraphGeneration[PromptStage, int]]:
    config = GenerationConfig(most, dict(zip("01", PROFILES, strict=True)), "0")
    engine = CausalGeneration(case.model, load_ops(GPU), EngineSettings(precision, 0), config)
    return engine, GraphGeneration(engine, PromptStage(case.model), config.batch_buckets, PROFILES)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_recorded_answers_are_the_engines_and_no_neighbour_changes_a_bit(
    precision: Precision,
) -> None:
    case = on(causal_case(WIDE, 5, (64, 1, 33, 7, 50), ads=700), GPU)
    engine, graphs = recorded(case, precision, most=5)
    for beams in PROFILES:
        whole = replace(case, profile=beams)
        expected = engine.generate(whole.prompts, whole.task)
        assert (expected.leaves != NO_NODE).any()
        for rows in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 1, 2, 4]):
            turned = whole.of(rows, 5, changed=rows[1::2])
            got = graphs.generate(turned.prompts, turned.task)
            torch.cuda.synchronize()
            for place, row in [*enumerate(rows)][::2]:
                assert torch.equal(got.leaves[place], expected.leaves[row])
                assert torch.equal(got.scores[place], expected.scores[row])
        alone = whole.of([2], 2)
        got = graphs.generate(alone.prompts, alone.task)
        torch.cuda.synchronize()
        if precision == "fp32":
            assert_same_sids(got, causal_plainly(alone))


SIZES = {
    "one-token-prompts": ((1, 1), 63, (8, 8, 8), 401),
    "prompts-of-1000": ((1000, 63, 1), 256, (64, 64, 64), 2_000),
    "prompts-of-4096": ((4096, 1, 63), 31, (2, 64, 8), 1_000),
    "wide-levels": ((63, 7), 1024, (8192, 8192), 150_000),
    "levels-of-2": ((5, 9), 1, (2, 2, 2, 2), 97),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", SIZES)
def test_prompts_beams_levels_and_vocabularies_of_all_sizes(name: str) -> None:
    lengths, beams, vocab_sizes, num_tokens = SIZES[name]
    causal = replace(WIDE.causal, layers=2, num_tokens=num_tokens)
    spec = spec_of(causal, vocab_sizes, longest=max(lengths))
    case = on(causal_case(spec, 11, lengths, beams, ads=3_000), GPU)
    assert_same_sids(causal_fast(case, load_ops(GPU)), causal_plainly(case))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_load_takes_at_most_the_memory_that_was_planned(precision: Precision) -> None:
    causal = replace(WIDE.causal, layers=8, d_model=1024, d_ff=3072, num_tokens=60_000)
    spec = spec_of(causal, (64, 64, 64), longest=512)
    torch.cuda.empty_cache()  # what other tests left counts as reserved
    case = on(causal_case(spec, 3, (5, 300)), GPU)
    stored = torch.cuda.memory_allocated(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    _, graphs = recorded(case, precision, most=16)
    assert graphs.graphs > 16
    config = GenerationConfig(16, dict(zip("01", PROFILES, strict=True)), "0")
    planned = memory_on_gpu(spec, config, precision, stored)
    reserved, taken = torch.cuda.max_memory_reserved(GPU), torch.cuda.max_memory_allocated(GPU)
    assert reserved <= planned <= 3 * taken
