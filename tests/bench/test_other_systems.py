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
from grace.bench.rungs.dense_search import RungDecoder, require_full_contexts
from grace.bench.rungs.static_mask import KeptBeams
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError, InputError
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.model.definition.inputs import UserContext
from support.bench_workloads import tiny
from support.decode_cases import branching_case, decode_case
from support.models import SMALL_DECODER, random_context, random_decoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def comparison() -> Any:
    """The module, imported by the process that runs these tests: transformers takes seconds, and
    every worker of a test run imports every test file."""
    return import_module("grace.bench.gpu.comparison")


def test_a_masked_context_and_a_decoder_that_flash_attention_does_not_take_are_refused() -> None:
    context = random_context(3, 9, 17, seed=7)
    full = UserContext(context.states, torch.ones_like(context.mask))
    require_full_contexts(full)
    full.mask[1, 2] = False
    with pytest.raises(InputError, match="full user contexts"):
        require_full_contexts(full)
    with pytest.raises(InputError, match="without a relative bias"):
        RungDecoder.of(random_decoder(SMALL_DECODER, (7, 7, 7), 17, 7), CPU, torch.float32)


def test_dead_beams_without_constraints_have_no_number() -> None:
    decoder = random_decoder(SMALL_DECODER, (7, 7, 7), 17, seed=13)
    decoder.bias.data.zero_()
    context = random_context(3, 9, 17, seed=13)
    context.mask[:] = True
    expected = unconstrained_result(decoder, context, BeamProfile((1, 11, 11), 11))
    dead = replace(expected, scores=torch.full_like(expected.scores, -torch.inf))
    places = tuple(torch.full((3, 11), NO_NODE, dtype=torch.int32) for _ in range(3))
    assert (TracedResult(dead, places).numbered(7).nodes == NO_NODE).all()


def test_a_prefix_function_allows_what_continues_a_sid_and_elsewhere_only_padding(
    comparison: Any,
) -> None:
    case = branching_case(np.random.default_rng(7), 63, 1)
    trie = decode_case(case, MatcherMode.CD).snapshot.trie
    allowed, offsets = comparison.hf_t5.allowed_by_trie(trie), np.cumsum([2, *trie.vocab_sizes])
    for prefix in (ad.sid[:length] for ad in case.ads for length in range(trie.sid_length)):
        tokens = torch.from_numpy(np.array([0, *(np.array(prefix) + offsets[: len(prefix)])]))
        children = trie.children(trie.walk(prefix))[0]
        assert allowed(0, tokens) == (children + offsets[len(prefix)]).tolist()
    assert allowed(0, torch.tensor([0, 0])) == [0]


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
    comparison: Any, part: str, name: str, wrong: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = comparison.hf_t5 if part == "hf" else comparison
    monkeypatch.setattr(of, name, partial(wrong, getattr(of, name)))
    with pytest.raises(DeviceError, match=fault):
        list(comparison.measure(tiny("others", part)))
