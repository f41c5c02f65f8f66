"""The decoder step by step, with its paged cache, compared with all steps at once."""

from dataclasses import replace

import pytest
import torch

from grace.kernels import REFERENCE
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.definition.spec import DecoderSpec
from support.models import random_context, random_decoder

SPECS = {
    "relu": DecoderSpec(layers=2, d_model=24, heads=3, d_head=8, d_ff=40),
    "gated": DecoderSpec(layers=1, d_model=16, heads=2, d_head=8, d_ff=24, ffn="gated_gelu"),
    "odd heads": DecoderSpec(layers=3, d_model=20, heads=3, d_head=5, d_ff=11),
    "scaled": DecoderSpec(layers=2, d_model=16, heads=2, d_head=16, d_ff=9, scale_scores=True),
    "extra": DecoderSpec(
        layers=1, d_model=16, heads=1, d_head=16, d_ff=9, extra_head_rows=(7, 0, 1, 3)
    ),
}
VOCAB = (7, 3, 11, 5)
D_CONTEXT = 13


def stepwise(decoder: Decoder, context: UserContext, sids: torch.Tensor) -> list[torch.Tensor]:
    """One beam per request, its blocks scattered over the pool."""
    rows, length = sids.shape
    cross = decoder.cross_cache(context)
    pools = decoder.new_pools(rows * length + 3)
    for pool in pools:
        pool.fill_(torch.nan)
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randperm(rows * length, generator=generator).to(torch.int32)
    table = torch.full((rows, length), -1, dtype=torch.int32)
    found = []
    for step in range(length):
        table[:, step] = blocks[step * rows : (step + 1) * rows]
        tokens = sids[:, step - 1] if step else torch.zeros(rows, dtype=torch.int64)
        with torch.inference_mode():
            found.append(decoder.step(step, tokens, pools, table, cross, REFERENCE))
    return found


@pytest.mark.parametrize("name", SPECS)
def test_steps_through_the_paged_cache_equal_all_steps_at_once(name: str) -> None:
    decoder = random_decoder(SPECS[name], VOCAB, D_CONTEXT, seed=5)
    context = random_context(9, 6, D_CONTEXT, seed=5)
    sids = torch.stack([torch.arange(9) % size for size in VOCAB], dim=1)
    with torch.inference_mode():
        at_once = decoder.sequence_logits(context, sids)
    for step, logits in enumerate(stepwise(decoder, context, sids)):
        assert logits.shape == (9, VOCAB[step] + decoder.extra[step])
        assert torch.allclose(logits, at_once[step], atol=2e-5, rtol=1e-5), f"step {step}"


def test_later_tokens_do_not_change_earlier_logits() -> None:
    decoder = random_decoder(SPECS["relu"], VOCAB, D_CONTEXT, seed=1)
    context = random_context(2, 6, D_CONTEXT, seed=1)
    first = torch.tensor([[1, 2, 3, 4], [0, 1, 10, 0]])
    second = torch.tensor([[1, 2, 9, 0], [0, 1, 4, 3]])
    with torch.inference_mode():
        one, other = (decoder.sequence_logits(context, sids) for sids in (first, second))
    for step in range(3):
        assert torch.equal(one[step], other[step])
    assert not torch.equal(one[3], other[3])


def test_masked_keys_have_no_influence_and_a_context_may_have_no_key() -> None:
    decoder = random_decoder(SPECS["relu"], VOCAB, D_CONTEXT, seed=2)
    context = random_context(3, 6, D_CONTEXT, seed=2)
    noisy = context.states.clone()
    noisy[~context.mask] = 1e4
    sids = torch.tensor([[1, 2, 3, 4]] * 3)
    with torch.inference_mode():
        clean = decoder.sequence_logits(context, sids)
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                clean, decoder.sequence_logits(replace(context, states=noisy), sids), strict=True
            )
        )
        nothing = replace(context, mask=torch.zeros_like(context.mask))
        alone = decoder.sequence_logits(nothing, sids)
    for step, logits in enumerate(stepwise(decoder, nothing, sids)):
        assert logits.isfinite().all()
        assert torch.allclose(logits, alone[step], atol=2e-5, rtol=1e-5)


def test_every_weight_has_a_gradient() -> None:
    decoder = random_decoder(SPECS["gated"], VOCAB, D_CONTEXT, seed=3)
    context = random_context(5, 6, D_CONTEXT, seed=3)
    sids = torch.stack([torch.arange(5) % size for size in VOCAB], dim=1)
    loss = sum(x.logsumexp(-1).sum() for x in decoder.sequence_logits(context, sids))
    assert isinstance(loss, torch.Tensor)
    torch.autograd.backward(loss)
    for name, weight in decoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name
