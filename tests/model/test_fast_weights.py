"""Weights laid out for generation give what the decoder's own weights give."""

import pytest
import torch

from grace.kernels import REFERENCE
from grace.model.definition.layers import feed_forward, linear, rms_norm
from grace.model.engine.decode_weights import FastWeights
from support.fast_cases import DECODERS
from support.models import random_decoder

CPU = torch.device("cpu")
NAMES = list(DECODERS)


@pytest.mark.parametrize("name", NAMES)
def test_layer_0s_table_holds_the_start_and_then_every_token_of_every_step(name: str) -> None:
    spec, vocab_sizes = DECODERS[name]
    decoder = random_decoder(spec, vocab_sizes, 13, seed=1)
    weights = FastWeights.of(decoder)
    layer = {k.removeprefix("layers.0."): v for k, v in decoder.named_parameters()}
    widest = max(vocab_sizes)
    assert weights.first_blocks.shape == (
        1 + (len(vocab_sizes) - 1) * widest,
        3,
        spec.heads,
        spec.d_head,
    )
    inputs: dict[int, torch.Tensor] = {0: decoder.start}
    for step, size in enumerate(vocab_sizes[:-1]):
        for token in range(size):
            inputs[weights.first_block_of(step) + token] = decoder.embed[step, token]
    for block, x in inputs.items():
        qkv = linear(rms_norm(x[None], layer["self_norm"], spec.norm_eps), layer["qkv"])
        assert torch.allclose(weights.first_blocks[block].flatten(), qkv[0], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_its_own_head_rows_and_its_extra_ones_with_the_last_gain(name: str) -> None:
    spec, vocab_sizes = DECODERS[name]
    decoder = random_decoder(spec, vocab_sizes, 13, seed=2)
    weights = FastWeights.of(decoder)
    x = torch.randn((9, spec.d_model), generator=torch.Generator().manual_seed(2))
    normed = rms_norm(x, decoder.final_norm, spec.norm_eps)
    factors = REFERENCE.row_factors(x, spec.norm_eps)
    for step, size in enumerate(vocab_sizes):
        widest, extra = max(vocab_sizes), decoder.extra[step]
        rows = [*range(size), *range(widest, widest + extra)]
        expected = normed @ decoder.head[step][rows].T
        got = linear(x, weights.heads[step]) * factors[:, None]
        assert weights.heads[step].is_contiguous()
        assert torch.allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["L=3-gated-scaled", "L=4-unequal"])
def test_gains_fold_into_the_weights_behind_the_norms(name: str) -> None:
    spec, vocab_sizes = DECODERS[name]
    decoder = random_decoder(spec, vocab_sizes, 13, seed=3)
    weights = FastWeights.of(decoder)
    own = dict(decoder.named_parameters())
    x = 3 * torch.randn((9, spec.d_model), generator=torch.Generator().manual_seed(3))
    factors = REFERENCE.row_factors(x, spec.norm_eps)
    for i, layer in enumerate(weights.layers):
        normed = {
            kind: rms_norm(x, own[f"layers.{i}.{kind}_norm"], spec.norm_eps)
            for kind in ("self", "cross", "ffn")
        }
        if i > 0:
            qkv = normed["self"] @ own[f"layers.{i}.qkv"].T
            assert torch.allclose((x @ weights.qkv[i - 1].T) * factors[:, None], qkv, atol=1e-4)
        queries = normed["cross"] @ own[f"layers.{i}.cross_q"].T
        assert torch.allclose((x @ layer.cross_q.T) * factors[:, None], queries, atol=1e-4)
        hidden = REFERENCE.activate(x @ layer.ffn_in.T, factors, spec.ffn)
        expected = feed_forward(
            normed["ffn"], own[f"layers.{i}.ffn_in"], own[f"layers.{i}.ffn_out"], spec.ffn
        )
        assert torch.allclose(hidden @ layer.ffn_out.T, expected, atol=1e-3)


def test_a_lower_precision_casts_everything_but_the_bias_by_distance() -> None:
    spec, vocab_sizes = DECODERS["L=4-extra-rows"]
    weights = FastWeights.of(random_decoder(spec, vocab_sizes, 13, seed=4))
    cast = weights.to(CPU, torch.bfloat16)
    assert cast.bias.dtype == torch.float32
    assert cast.dtype == torch.bfloat16
    tensors = [cast.start, cast.embed, cast.first_blocks, cast.cross_kv, *cast.qkv, *cast.heads]
    for layer in cast.layers:
        tensors += [layer.self_out, layer.cross_q, layer.cross_out, layer.ffn_in, layer.ffn_out]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert torch.equal(cast.layers[0].cross_q, weights.layers[0].cross_q.bfloat16())


def test_a_decoder_in_lower_precision_is_folded_in_float32() -> None:
    spec, vocab_sizes = DECODERS["L=2-one-layer"]
    decoder = random_decoder(spec, vocab_sizes, 13, seed=5).bfloat16()
    weights = FastWeights.of(decoder)
    gain, head = decoder.final_norm.float(), decoder.head[0].float()
    assert torch.equal(weights.heads[0], head[: vocab_sizes[0]] * gain)
