"""Whole models with either encoder, and catalogues to generate from."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors
from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.definition.spec import DecoderSpec, ModelSpec
from support.encoder_cases import INTERFORMER, T5, random_features
from support.plain_builder import plain_snapshot
from support.plain_inputs import encode_inputs
from support.strategies import random_ads, random_schema, random_users

_DECODER = DecoderSpec(layers=2, d_model=24, heads=3, d_head=8, d_ff=40, scale_scores=True)
_GATED = replace(_DECODER, ffn="gated_gelu", scale_scores=False, extra_head_rows=(3, 0, 7))

MODELS: dict[str, ModelSpec] = {
    "interformer": replace(INTERFORMER, decoder=_DECODER),
    "t5": replace(T5, decoder=_GATED),
}

PROFILES = (BeamProfile((1, 3, 4), 6), BeamProfile((1, 5, 17), 13))


@dataclass(frozen=True)
class Batch:
    features: FeatureTensors
    users: UserTensors


def make_model(kind: str, device: torch.device) -> Model:
    return random_model(MODELS[kind], seed=1).eval().requires_grad_(False).to(device)


def index_of(model: Model, seed: int, mode: MatcherMode, device: torch.device) -> DecodeIndex:
    """Return a catalogue with the schema of every batch's users."""
    rng = np.random.default_rng(seed)
    schema = random_schema(np.random.default_rng(7), (5, 64), 1)
    vocab_sizes = model.spec.vocab_sizes
    snapshot = plain_snapshot(schema, vocab_sizes, random_ads(rng, schema, vocab_sizes, 150), mode)
    return DecodeIndex.of(snapshot, device)


def make_batch(model: Model, seed: int, requests: int, bucket: int, device: torch.device) -> Batch:
    """Return a batch whose last rows, up to the bucket's size, are empty users."""
    rng = np.random.default_rng(seed)
    schema = random_schema(np.random.default_rng(7), (5, 64), 1)
    inputs = encode_inputs(
        model.spec, [random_features(model.spec, rng) for _ in range(requests)], bucket
    )
    users = [*random_users(rng, schema, requests), *[{}] * (bucket - requests)]
    empty = plain_snapshot(schema, model.spec.vocab_sizes, random_ads(rng, schema, (1, 1, 1), 1))
    rows = UserEncoder(schema, empty.set_values).encode(users)
    with torch.inference_mode():
        features = model.features(inputs.to(device))
    return Batch(features, UserTensors.of(rows, device))
