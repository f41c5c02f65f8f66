"""The rungs below the engine compute what the plain beam search does."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.gpu.found import Found, TracedFound, plain_found_freely
from grace.bench.rungs.attention import DenseCache, attend_sdpa, spread_to_rows
from grace.bench.rungs.dense_search import DenseGenerated, Rung, dense_search, require_full_contexts
from grace.bench.rungs.every_token import EveryToken
from grace.bench.rungs.ladder import DENSE_RUNGS, L0, L1
from grace.bench.rungs.weights import RungWeights
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, Beams
from grace.model.definition.beam_search import beam_search
from grace.model.definition.inputs import UserContext
from support.command import run_python
from support.rung_cases import RungCase, dense_inputs, expected_sids, rung_case

CPU = torch.device("cpu")


def searched(case: RungCase, rung: Rung) -> DenseGenerated:
    weights = RungWeights.of(case.decoder, CPU, torch.float32)
    return dense_search(weights, case.context.states, case.profile, rung)


def assert_agree(case: RungCase, generated: DenseGenerated) -> None:
    sids, scores = expected_sids(case)
    torch.testing.assert_close(generated.scores, scores, rtol=1e-4, atol=1e-4)
    live = (scores > -torch.inf).numpy()
    np.testing.assert_array_equal(generated.sids.numpy()[live], sids[live])


@pytest.mark.parametrize("rung", [L0, L1], ids=lambda rung: rung.name)
@pytest.mark.parametrize("biased", [True, False])
def test_a_rung_generates_the_sids_of_the_plain_search(rung: Rung, biased: bool) -> None:
    case = rung_case(7, biased=biased)
    assert_agree(case, searched(case, rung))


def test_a_rung_keeps_to_gated_networks_and_rows_that_only_normalise() -> None:
    case = rung_case(11, ffn="gated_gelu", extra=(0, 3, 1))
    assert_agree(case, searched(case, L1))


def test_beams_beyond_the_first_vocabulary_are_dead_as_in_the_plain_search() -> None:
    case = rung_case(13, profile=BeamProfile((1, 11, 11), 11))
    assert_agree(case, searched(case, L1))


def test_a_zero_bias_is_left_out_and_any_other_is_not() -> None:
    biased, plain = rung_case(7), rung_case(7, biased=False)
    assert RungWeights.of(biased.decoder, CPU, torch.float32).bias is not None
    assert RungWeights.of(plain.decoder, CPU, torch.float32).bias is None


def test_a_context_with_masked_keys_is_refused() -> None:
    context = rung_case(7).context
    require_full_contexts(context)
    mask = context.mask.clone()
    mask[1, 2] = False
    with pytest.raises(InputError, match="full user contexts"):
        require_full_contexts(UserContext(context.states, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_of_a_request_gets_its_keys(dtype: torch.dtype) -> None:
    keys = torch.arange(2 * 3 * 5 * 4).view(2, 3, 5, 4).to(dtype)
    spread = spread_to_rows(keys, 7)
    assert spread.shape == (14, 3, 5, 4)
    assert torch.equal(spread, keys.repeat_interleave(7, dim=0))
    assert spread.is_contiguous()


def test_keys_are_spread_when_the_number_of_beams_changes_and_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widths: list[int] = []

    def counting(keys: Tensor, beams: int) -> Tensor:
        widths.append(beams)
        return spread_to_rows(keys, beams)

    monkeypatch.setattr("grace.bench.rungs.dense_search.spread_to_rows", counting)
    case = rung_case(7, profile=BeamProfile((1, 11, 11), 11))
    assert_agree(case, searched(case, L0))
    assert widths == [11] * 2 * 2  # keys and values of both layers


def test_the_names_of_the_rungs_are_the_papers() -> None:
    assert [rung.name for rung in DENSE_RUNGS] == ["L0", "L1", "L2", "L3"]


def test_places_of_every_token_tell_the_sids_of_the_plain_search() -> None:
    case = rung_case(17)
    slot = EveryToken(7)
    places: list[Tensor] = []

    def select(*arguments: Any, **named: Any) -> Beams:
        beams = REFERENCE.select_beams(*arguments, **named)
        places.append(beams.nodes)
        return beams

    ops = replace(
        REFERENCE, admit_children=lambda nodes, *_: slot.admit_children(nodes), select_beams=select
    )
    index = case.catalogue.index.without_matchers()
    got, expected = (
        beam_search(case.decoder, case.context, case.catalogue.users, index, case.profile, each)
        for each in (ops, REFERENCE)
    )
    assert torch.equal(got.scores, expected.scores)
    assert not torch.equal(got.leaves, expected.leaves)
    untold = Found(got.leaves, got.scores, got.corrupt)
    nodes = TracedFound(untold, tuple(places)).numbered(7).nodes
    assert torch.equal(nodes - index.first_leaf, expected.leaves.long())


def test_dead_beams_without_constraints_have_no_number() -> None:
    case = rung_case(13, profile=BeamProfile((1, 11, 11), 11))
    expected = plain_found_freely(case.decoder, case.context, case.profile)
    scores = torch.full_like(expected.scores, -torch.inf)
    places = tuple(torch.full((3, n), NO_NODE, dtype=torch.int32) for n in (11, 11, 11))
    traced = TracedFound(Found(expected.nodes, scores, expected.corrupt), places)
    assert (traced.numbered(7).nodes == NO_NODE).all()


INTERPRETED = """
import torch
from grace.bench.rungs.attention import attend_sdpa
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced, attend_fused
from support.rung_cases import dense_inputs

for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
    for step, rows, heads, d_head, tile in (
        (0, 5, 3, 8, 16), (1, 17, 2, 16, 16), (2, 33, 1, 20, 32), (3, 31, 2, 16, 16)
    ):
        for biased in (True, False):
            for attend in (attend_coalesced, attend_fused):
                qkv, cache, bias = dense_inputs(step, rows, 4, heads, d_head, step, dtype)
                _, plain, _ = dense_inputs(step, rows, 4, heads, d_head, step, dtype)
                own = bias if biased else None
                got = attend(qkv, cache, step, own, 0.4, Tile(tile, 4))
                expected = attend_sdpa(
                    qkv.float(),
                    type(plain)(plain.keys.float(), plain.values.float()),
                    step, None if own is None else own.float(), 0.4,
                )
                torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)
                written = qkv[:, 1], qkv[:, 2]
                for part, new in zip((cache.keys, cache.values), written):
                    assert torch.equal(part[step, :rows], new)
                    assert part[step, rows:].isnan().all()
print("agree")
"""


@pytest.mark.subprocess
def test_coalesced_and_fused_attention_agree_with_the_plain_one() -> None:
    pytest.importorskip("triton")
    path = os.pathsep.join([str(file) for file in (".", "tests")])
    done = run_python(INTERPRETED, env={"TRITON_INTERPRET": "1", "PYTHONPATH": path})
    assert done.stdout == "agree\n", done.stderr


def test_attention_reads_no_row_but_its_own() -> None:
    qkv, cache, bias = dense_inputs(3, 5, 4, 2, 8, 2, torch.float32)
    before = attend_sdpa(qkv, cache, 2, bias, 0.4)
    other: Tensor = cache.keys.clone()
    other[:2, 1] += 1.0
    after = attend_sdpa(qkv, DenseCache(other, cache.values), 2, bias, 0.4)
    assert (before != after).any(dim=1).tolist() == [False, True, False, False, False]
