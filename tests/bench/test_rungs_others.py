"""What others do, written from their descriptions: valid SIDs and nothing else."""

import numpy as np
import pytest
import torch

from grace.bench.rungs.hf_t5 import allowed_by_trie, hf_decoder, hf_generate
from grace.bench.rungs.static_mask import static_index, static_step
from grace.index.matchers.modes import MatcherMode
from grace.model.definition.spec import DecoderSpec
from support.decode_cases import DecodeCase, branching_case, decode_case


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


def test_a_prefix_function_lets_the_search_generate_valid_sids_only(catalogue: DecodeCase) -> None:
    trie = catalogue.snapshot.trie
    spec = DecoderSpec(layers=2, d_model=16, heads=2, d_head=8, d_ff=20)
    model = hf_decoder(spec, trie.vocab_sizes, torch.device("cpu"), torch.float32, seed=7)
    states = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(7))
    generated = hf_generate(model, states, 3, trie.sid_length, allowed_by_trie(trie))
    offsets = np.cumsum([2, *trie.vocab_sizes])[: trie.sid_length]
    sids = generated[:, 1:].numpy() - offsets
    assert generated.shape == (6, 1 + trie.sid_length)
    assert all(trie.walk(tuple(sid)) >= 0 for sid in sids.tolist())
    free = hf_generate(model, states, 3, trie.sid_length, None)
    assert free.shape == generated.shape


def test_a_prefix_outside_the_trie_may_only_pad(catalogue: DecodeCase) -> None:
    allowed = allowed_by_trie(catalogue.snapshot.trie)
    assert allowed(0, torch.tensor([0, 0])) == [0]
    root = catalogue.snapshot.trie.children(0)[0]
    assert allowed(0, torch.tensor([0])) == (root + 2).tolist()
