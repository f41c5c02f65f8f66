"""The encoders against other definitions of them: Hugging Face's T5, InterFormer's formulas."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import T5Config, T5EncoderModel

from grace.model.checkpoints.init import random_model
from grace.model.definition.encoders import T5Encoder
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.spec import T5EncoderSpec
from support.encoder_cases import INTERFORMER, T5, context_of, random_features
from support.plain_inputs import InputEncoder, RequestFeatures
from support.plain_interformer import plain_context

GATED = {"feed_forward_proj": "gated-gelu"}
NEAR = {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 30}
HF_SHAPES: dict[str, dict[str, Any]] = {
    "relu": {"d_model": 24, "d_kv": 8, "num_heads": 3, "d_ff": 33, "num_layers": 1},
    "gated": {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": 3} | GATED,
    "odd widths": {"d_model": 21, "d_kv": 5, "num_heads": 3, "d_ff": 17, "num_layers": 2},
    "distances": {"d_model": 16, "d_kv": 7, "num_heads": 2, "d_ff": 8, "num_layers": 2} | NEAR,
}


def encoder_of(hugging_face: T5EncoderModel, config: T5Config) -> T5Encoder:
    encoder = T5Encoder(
        T5EncoderSpec(
            layers=config.num_layers,
            d_model=config.d_model,
            heads=config.num_heads,
            d_head=config.d_kv,
            d_ff=config.d_ff,
            history="clicks",
            num_tokens=config.vocab_size,
            token_offsets=(0,),
            ffn="gated_gelu" if config.is_gated_act else "relu",
            relative_buckets=config.relative_attention_num_buckets,
            relative_max_distance=config.relative_attention_max_distance,
        )
    )
    theirs = hugging_face.encoder.state_dict()
    attention = "block.0.layer.0.SelfAttention"
    ours = {
        "bias": theirs[f"{attention}.relative_attention_bias.weight"],
        "final_norm": theirs["final_layer_norm.weight"],
    }
    for i in range(config.num_layers):
        mix, ffn = f"block.{i}.layer.0", f"block.{i}.layer.1"
        inner = ("wi_0", "wi_1") if config.is_gated_act else ("wi",)
        ours |= {
            f"layers.{i}.self_norm": theirs[f"{mix}.layer_norm.weight"],
            f"layers.{i}.qkv": torch.cat(
                [theirs[f"{mix}.SelfAttention.{x}.weight"] for x in "qkv"]
            ),
            f"layers.{i}.self_out": theirs[f"{mix}.SelfAttention.o.weight"],
            f"layers.{i}.ffn_norm": theirs[f"{ffn}.layer_norm.weight"],
            f"layers.{i}.ffn_in": torch.cat(
                [theirs[f"{ffn}.DenseReluDense.{x}.weight"] for x in inner]
            ),
            f"layers.{i}.ffn_out": theirs[f"{ffn}.DenseReluDense.wo.weight"],
        }
    encoder.load_state_dict(ours)
    return encoder


@pytest.mark.parametrize("shape", HF_SHAPES.values(), ids=HF_SHAPES)
def test_the_t5_encoder_is_hugging_faces(shape: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    config = T5Config(vocab_size=63, dropout_rate=0.0, **shape)
    hugging_face = T5EncoderModel(config)
    with torch.no_grad():
        for weight in hugging_face.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if weight.dim() == 1 else 0.4 * noise)
    tokens = torch.randint(63, (3, 41), generator=generator)
    mask = torch.arange(41) < torch.tensor([41, 1, 23])[:, None]
    with torch.inference_mode():
        states = hugging_face.shared(tokens).masked_fill(~mask[:, :, None], 0.0)
        ours = encoder_of(hugging_face, config)(
            FeatureTensors(None, (SequenceTensors(states, mask),))
        )
        theirs = hugging_face(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    assert torch.equal(ours.mask, mask)
    torch.testing.assert_close(ours.states[mask], theirs[mask], rtol=1e-5, atol=1e-5)
    assert not ours.states[~mask].any()


def test_a_t5_history_of_no_token_at_all_has_a_context_of_zeros() -> None:
    encoder = random_model(T5, seed=3).encoder
    nothing = SequenceTensors(torch.zeros(2, 5, 21), torch.zeros(2, 5, dtype=torch.bool))
    with torch.inference_mode():
        context = encoder(FeatureTensors(None, (nothing,)))
    assert not context.mask.any()
    assert not context.states.any()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_interformer_is_its_formulas(seed: int) -> None:
    interformer = random_model(INTERFORMER, seed=3)
    rng = np.random.default_rng(seed)
    requests = [random_features(INTERFORMER, rng), RequestFeatures()]
    requests.append(replace(requests[0], sequences={"buys": requests[0].sequences["buys"]}))
    weights = {n: w.numpy().astype(np.float64) for n, w in interformer.state_dict().items()}
    context = context_of(interformer, *requests)
    encoder = InputEncoder(INTERFORMER)
    for states, request in zip(context.states, requests, strict=True):
        expected = plain_context(INTERFORMER, weights, encoder.encode(request))
        torch.testing.assert_close(states.double(), torch.from_numpy(expected), rtol=0, atol=2e-5)
    assert context.mask.all()
