"""The memo of prefixes against layer 0 of the plain decoder."""

from itertools import product

import pytest
import torch

from grace.kernels import REFERENCE
from grace.model.definition.decoder import Decoder
from grace.model.definition.layers import linear, rms_norm
from grace.model.engine.decode_weights import FastWeights
from grace.model.engine.prefix_memo import PrefixMemo
from support.fast_cases import ALL_STEPS, DECODERS
from support.models import random_decoder


def plain_rows(decoder: Decoder, prefix: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer 0's stream after self-attention at the prefix's last token, and its cross query."""
    own = {k.removeprefix("layers.0."): v for k, v in decoder.named_parameters()}
    spec = decoder.spec
    inputs = [decoder.start, *(decoder.embed[i, token] for i, token in enumerate(prefix))]
    x = torch.stack(inputs)
    qkv = linear(rms_norm(x, own["self_norm"], spec.norm_eps), own["qkv"])
    q, k, v = qkv.view(len(x), 3, spec.heads, spec.d_head).unbind(1)
    bias = decoder.bias[:, : len(x)].flip(1)  # by position
    weights = (decoder.scale * torch.einsum("hd,jhd->hj", q[-1], k) + bias).softmax(dim=1)
    attended = torch.einsum("hj,jhd->hd", weights, v).flatten()
    state = x[-1] + own["self_out"] @ attended
    normed = rms_norm(state, own["cross_norm"], spec.norm_eps)
    return state, own["cross_q"] @ normed


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_row_is_what_layer_0_knows_of_that_prefix(name: str) -> None:
    spec, vocab_sizes = DECODERS[name]
    decoder = random_decoder(spec, vocab_sizes, 13, seed=1)
    memo = PrefixMemo.build(FastWeights.of(decoder), torch.float32, ALL_STEPS, REFERENCE)
    assert memo.steps == len(vocab_sizes)
    for step in range(memo.steps):
        prefixes = list(product(*map(range, vocab_sizes[:step])))
        assert len(memo.states[step]) == len(memo.queries[step]) == len(prefixes)
        for number in range(0, len(prefixes), 1 + len(prefixes) // 17):
            state, query = plain_rows(decoder, prefixes[number])
            assert torch.allclose(memo.states[step][number], state, atol=1e-4)
            assert torch.allclose(memo.queries[step][number], query, atol=1e-4)


def test_it_takes_as_many_steps_as_fit_and_always_the_first() -> None:
    spec, vocab_sizes = DECODERS["L=4-unequal"]
    weights = FastWeights.of(random_decoder(spec, vocab_sizes, 13, seed=2))
    row = (spec.d_model + spec.heads * spec.d_head) * 2
    sizes = [row, 5 * row, 5 * 13 * row, 5 * 13 * 3 * row]

    def steps_within(memo_bytes: int) -> int:
        memo = PrefixMemo.build(weights, torch.bfloat16, memo_bytes, REFERENCE)
        assert memo.size == sum(sizes[: memo.steps])
        assert memo.states[0].dtype == memo.queries[-1].dtype == torch.bfloat16
        return memo.steps

    assert steps_within(0) == 1
    assert [steps_within(sum(sizes[:n])) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert [steps_within(sum(sizes[:n]) - 1) for n in (2, 3, 4)] == [1, 2, 3]


def test_it_is_the_same_whatever_number_of_rows_is_computed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, vocab_sizes = DECODERS["L=4-unequal"]
    weights = FastWeights.of(random_decoder(spec, vocab_sizes, 13, seed=3))
    whole = PrefixMemo.build(weights, torch.float32, ALL_STEPS, REFERENCE)
    monkeypatch.setattr("grace.model.engine.prefix_memo._ROWS_AT_ONCE", 17)
    parts = PrefixMemo.build(weights, torch.float32, ALL_STEPS, REFERENCE)
    for one, other in zip(whole.states + whole.queries, parts.states + parts.queries, strict=True):
        assert torch.equal(one, other)
