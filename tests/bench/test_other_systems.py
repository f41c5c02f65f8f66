"""What the engine is compared with: the paper's rungs and other systems find the right SIDs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.gpu.subjects.search import DecoderBatch, TracedResult, unconstrained_result
from grace.bench.rungs.dense_search import (
    L0,
    L1,
    Rung,
    RungDecoder,
    dense_search,
    require_full_contexts,
)
from grace.bench.rungs.static_mask import KeptBeams, static_index, static_step
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError, InputError
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.model.definition.inputs import UserContext
from grace.model.definition.spec import DecoderSpec
from support.bench_workloads import tiny
from support.decode_cases import DecodeCase, branching_case, decode_case
from support.rung_cases import PROFILE, expected_sids, rung_case

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def comparison() -> Any:
    """The module, imported by the process that runs these tests: transformers takes seconds, and
    every worker of a test run imports every test file."""
    return import_module("grace.bench.gpu.comparison")


@pytest.fixture(scope="module")
def catalogue() -> DecodeCase:
    return decode_case(branching_case(np.random.default_rng(7), 63, 1), MatcherMode.CD)


@pytest.mark.parametrize("rung", [L0, L1], ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    "profile",
    [PROFILE, BeamProfile((1, 11, 11), 11)],  # beams beyond the first vocabulary are dead
)
def test_a_rung_generates_the_sids_of_the_plain_search(rung: Rung, profile: BeamProfile) -> None:
    case = rung_case(7, profile)
    weights = RungDecoder.of(case.decoder, CPU, torch.float32)
    generated = dense_search(weights, case.context.states, case.profile, rung)
    sids, scores = expected_sids(case)
    torch.testing.assert_close(generated.scores, scores, rtol=1e-4, atol=1e-4)
    live = (scores > -torch.inf).numpy()
    np.testing.assert_array_equal(generated.sids.numpy()[live], sids[live])


def test_a_masked_context_and_a_decoder_that_flash_attention_does_not_take_are_refused() -> None:
    case = rung_case(7)
    require_full_contexts(case.context)
    case.context.mask[1, 2] = False
    with pytest.raises(InputError, match="full user contexts"):
        require_full_contexts(case.context)
    case.decoder.bias.data[0, 0] = 1.0
    with pytest.raises(InputError, match="without a relative bias"):
        RungDecoder.of(case.decoder, CPU, torch.float32)


def test_dead_beams_without_constraints_have_no_number() -> None:
    case = rung_case(13, BeamProfile((1, 11, 11), 11))
    expected = unconstrained_result(case.decoder, case.context, case.profile)
    dead = replace(expected, scores=torch.full_like(expected.scores, -torch.inf))
    places = tuple(torch.full((3, 11), NO_NODE, dtype=torch.int32) for _ in range(3))
    assert (TracedResult(dead, places).numbered(7).nodes == NO_NODE).all()


def test_static_masks_keep_what_continues_a_sid_and_lead_on_to_it(catalogue: DecodeCase) -> None:
    trie, index = catalogue.snapshot.trie, static_index(catalogue.index)
    vocabulary = max(trie.vocab_sizes)
    rng = np.random.default_rng(11)
    for step in range(trie.sid_length):
        nodes = np.arange(trie.level_starts[step], trie.level_starts[step + 1], dtype=np.int32)
        tokens = trie.csr_tokens[nodes - 1].astype(np.int64) if step else np.zeros(1, np.int64)
        given = torch.from_numpy(rng.normal(size=(len(nodes), vocabulary)).astype(np.float32))
        masked, onward = static_step(
            index, step, given, torch.from_numpy(tokens), torch.from_numpy(nodes)
        )
        for row, node in enumerate(nodes.tolist()):
            own, below = trie.children(node)
            expected = torch.full((vocabulary,), -torch.inf)
            expected[own.astype(np.int64)] = given[row][own.astype(np.int64)]
            assert torch.equal(masked[row], expected)
            assert onward[row][torch.from_numpy(own.astype(np.int64))].tolist() == list(below)


def test_a_prefix_function_lets_the_search_generate_valid_sids_only(
    catalogue: DecodeCase,
) -> None:
    hf_t5 = import_module("grace.bench.rungs.hf_t5")
    trie = catalogue.snapshot.trie
    spec = DecoderSpec(layers=2, d_model=16, heads=2, d_head=8, d_ff=20)
    model = hf_t5.hf_decoder(spec, trie.vocab_sizes, CPU, torch.float32, seed=7)
    states = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(7))
    generated = hf_t5.hf_generate(model, states, 3, trie.sid_length, hf_t5.allowed_by_trie(trie))
    offsets = np.cumsum([2, *trie.vocab_sizes])[: trie.sid_length]
    sids = generated[:, 1:].numpy() - offsets
    assert generated.shape == (6, 1 + trie.sid_length)
    assert all(trie.walk(tuple(sid)) >= 0 for sid in sids.tolist())
    free = hf_t5.hf_generate(model, states, 3, trie.sid_length, None)
    assert free.shape == generated.shape
    allowed = hf_t5.allowed_by_trie(trie)
    assert allowed(0, torch.tensor([0, 0])) == [0], "a prefix outside the trie may only pad"
    assert allowed(0, torch.tensor([0])) == (trie.children(0)[0] + 2).tolist()


def test_other_systems_rows_have_several_beams_and_every_step(comparison: Any) -> None:
    rows = list(comparison.measure(tiny("others")))
    places = [(x["variant"], x["beams"] if x["measure"] == "generate" else x["step"]) for x in rows]
    generated = {(name, n) for name in ("hf", "hf prefix", "ours, D0", "ours, D1") for n in (2, 4)}
    variants = ("static eager", "static compiled", "ours, cd")
    assert set(places) == generated | {(name, step) for name in variants for step in range(4)}


def other_context(
    search: Callable[..., Any], decoder: Any, batch: DecoderBatch, *arguments: Any
) -> Any:
    context = UserContext(-batch.context.states, batch.context.mask)
    return search(decoder, replace(batch, context=context), *arguments)


def flipped(search: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return search(*arguments).flip(1)


def other_scores(step: Callable[..., KeptBeams], *arguments: Any) -> KeptBeams:
    kept = step(*arguments)
    return kept._replace(scores=kept.scores * 2)


def beams_of_one_sid(step: Callable[..., KeptBeams], *arguments: Any) -> KeptBeams:
    """Tokens and nodes belong together and scores are right, but the nodes are wrong."""
    kept = step(*arguments)
    first = kept.nodes[:, :1].expand_as(kept.nodes)
    return kept._replace(nodes=first, tokens=kept.tokens[:, :1].expand_as(kept.tokens))


@pytest.mark.parametrize(
    ("part", "name", "wrong", "fault"),
    [
        ("ours", "plain_result", other_context, "ours, D1, 2 beams"),
        ("hf", "hf_generate", flipped, r"hf, 2 beams: \d+\.\d% of the SIDs"),
        ("static", "static_beams", other_scores, "step 0, static eager, scores"),
        ("static", "static_beams", beams_of_one_sid, "step 0, static eager, nodes: "),
    ],
)
def test_both_sides_of_a_comparison_are_compared_with_their_definition(
    comparison: Any,
    part: str,
    name: str,
    wrong: Any,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, name, partial(wrong, getattr(comparison, name)))
    with pytest.raises(DeviceError, match=fault):
        list(comparison.measure(tiny("others", part)))
