"""Other systems that the engine is compared with: they find valid SIDs, and a fault costs a row."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.gpu.subjects.search import DecoderBatch
from grace.bench.rungs.static_mask import KeptBeams
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError
from grace.model.definition.inputs import UserContext
from grace.model.definition.spec import DecoderSpec
from support.bench_workloads import tiny
from support.decode_cases import DecodeCase, branching_case, decode_case


@pytest.fixture(scope="module")
def comparison() -> Any:
    """The module, imported by the process that runs these tests: transformers takes seconds, and
    every worker of a test run imports every test file."""
    return import_module("grace.bench.gpu.comparison")


@pytest.fixture(scope="module")
def catalogue() -> DecodeCase:
    return decode_case(branching_case(np.random.default_rng(7), 63, 1), MatcherMode.CD)


def test_a_prefix_function_lets_the_search_generate_valid_sids_only(
    catalogue: DecodeCase,
) -> None:
    hf_t5 = import_module("grace.bench.rungs.hf_t5")
    trie = catalogue.snapshot.trie
    spec = DecoderSpec(layers=2, d_model=16, heads=2, d_head=8, d_ff=20)
    model = hf_t5.hf_decoder(spec, trie.vocab_sizes, torch.device("cpu"), torch.float32, seed=7)
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
