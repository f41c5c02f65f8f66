"""The rungs below the engine compute what the plain beam search does; other systems, valid SIDs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.bench.gpu.subjects.search import TracedResult, unconstrained_result
from grace.bench.rungs.attention import spread_to_rows
from grace.bench.rungs.dense_search import (
    L0,
    L1,
    Rung,
    RungDecoder,
    dense_search,
    require_full_contexts,
)
from grace.bench.rungs.static_mask import static_index, static_step
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from support.decode_cases import DecodeCase, branching_case, decode_case
from support.rung_cases import PROFILE, expected_sids, rung_case

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_of_a_request_gets_its_keys(dtype: torch.dtype) -> None:
    keys = torch.arange(2 * 3 * 5 * 4).view(2, 3, 5, 4).to(dtype)
    spread = spread_to_rows(keys, 7)
    assert spread.shape == (14, 3, 5, 4)
    assert torch.equal(spread, keys.repeat_interleave(7, dim=0))
    assert spread.is_contiguous()


def test_dead_beams_without_constraints_have_no_number() -> None:
    case = rung_case(13, BeamProfile((1, 11, 11), 11))
    expected = unconstrained_result(case.decoder, case.context, case.profile)
    dead = replace(expected, scores=torch.full_like(expected.scores, -torch.inf))
    places = tuple(torch.full((3, 11), NO_NODE, dtype=torch.int32) for _ in range(3))
    assert (TracedResult(dead, places).numbered(7).nodes == NO_NODE).all()


@pytest.fixture(scope="module")
def catalogue() -> DecodeCase:
    return decode_case(branching_case(np.random.default_rng(7), 63, 1), MatcherMode.CD)


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
