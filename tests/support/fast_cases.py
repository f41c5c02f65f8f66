"""Decoders and whole models of every kind, with catalogues and users, for plain and fast search."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.configs.options import Fp8Product
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, Ops, UserTensors, admission_slot
from grace.model.checkpoints.init import random_model
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext, map_tensors
from grace.model.definition.model import Model
from grace.model.definition.t5_spec import DecoderSpec, EncoderDecoderSpec
from grace.model.engine.encoder_decoder.decode_loop import fast_search
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.encoder_decoder.rounded_weights import weights_in
from grace.model.engine.feature_stage import Features
from grace.model.engine.precision import PRECISIONS, Precision
from support.encoder_cases import INTERFORMER, T5, random_features
from support.models import random_context, random_decoder
from support.plain_builder import plain_snapshot
from support.plain_inputs import encode_inputs
from support.strategies import asking, random_ads, random_schema, random_users

ALL_STEPS = 1 << 40  # memo bytes

_RELU = DecoderSpec(layers=2, d_model=24, heads=3, d_head=8, d_ff=40)

DECODERS: dict[str, tuple[DecoderSpec, tuple[int, ...]]] = {
    "L=1": (_RELU, (63,)),
    "L=2-one-layer": (replace(_RELU, layers=1), (11, 17)),
    "L=3-gated-scaled": (replace(_RELU, ffn="gated_gelu", scale_scores=True), (7, 11, 5)),
    "L=4-unequal": (replace(_RELU, layers=3, d_model=20, d_head=5), (5, 13, 3, 9)),
    "L=4-extra-rows": (replace(_RELU, extra_head_rows=(7, 0, 1, 3)), (7, 3, 11, 5)),
    "L=5": (replace(_RELU, heads=1, d_head=16, norm_eps=1e-3), (3, 5, 2, 7, 3)),
}
"""Specifications of the T5 family with vocabularies, by name."""

WIDE_DECODERS: dict[str, tuple[DecoderSpec, tuple[int, ...]]] = {
    "L=3-wide": (replace(_RELU, d_model=128, heads=4, d_head=32, d_ff=256), (13, 11, 7)),
    "L=3-wide-gated": (
        replace(_RELU, d_model=128, heads=2, d_head=64, ffn="gated_gelu"),
        (11, 13, 5),
    ),
}
"""Decoders of a width that precision fp8 can round."""


@dataclass(frozen=True)
class FastCase:
    decoder: Decoder
    context: UserContext
    users: UserTensors
    index: DecodeIndex
    profile: BeamProfile


def fast_case(
    name: str,
    seed: int,
    mode: MatcherMode = MatcherMode.UNION,
    requests: int = 5,
    beams: int = 9,
    ads: int = 150,
) -> FastCase:
    """On the CPU. The last user gives nothing; most steps have more candidates than beams."""
    spec, vocab_sizes = (DECODERS | WIDE_DECODERS)[name]
    rng = np.random.default_rng(seed)
    schema = random_schema(rng, (5, 64), 1)
    snapshot = plain_snapshot(schema, vocab_sizes, random_ads(rng, schema, vocab_sizes, ads), mode)
    users = [*random_users(rng, schema, requests - 1), {}]
    rows = UserEncoder(schema, snapshot.set_values).encode([*map(asking, users)])
    cpu = torch.device("cpu")
    return FastCase(
        decoder=random_decoder(spec, vocab_sizes, 13, seed),
        context=random_context(len(users), 7, 13, seed),
        users=UserTensors.of(rows, cpu),
        index=DecodeIndex.of(snapshot, cpu),
        profile=BeamProfile((1, *[beams] * (len(vocab_sizes) - 1)), beams + 2),
    )


def on(case: FastCase, device: torch.device) -> FastCase:
    moved: FastCase = map_tensors(case, lambda tensor: tensor.to(device))
    return replace(moved, decoder=case.decoder.to(device))


def assert_same_sids(got: Generated, expected: Generated) -> None:
    """Require the same SIDs, on any device, whose scores differ by rounding only."""
    got, expected = (map_tensors(each, torch.Tensor.cpu) for each in (got, expected))
    assert torch.equal(got.leaves, expected.leaves)
    assert torch.equal(got.corrupt, expected.corrupt)
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-4, atol=0)


def search_plainly(case: FastCase, ops: Ops) -> Generated:
    return beam_search(case.decoder, case.context, case.users, case.index, case.profile, ops)


def search_fast(
    case: FastCase,
    ops: Ops,
    memo_bytes: int = ALL_STEPS,
    precision: Precision = "fp32",
    kept: Collection[Fp8Product] = (),
) -> Generated:
    folded = FastWeights.of(case.decoder)
    memo = PrefixMemo.build(folded, PRECISIONS[precision], memo_bytes, ops)
    slot = admission_slot(ops)
    slot.point_at(case.users, case.index)
    weights = weights_in(folded, precision, kept)
    found = fast_search(weights, memo, case.context, slot, case.profile, ops)
    return Generated(case.index.leaves_of(found.nodes), found.scores, found.corrupt)


_DECODER = DecoderSpec(layers=2, d_model=24, heads=3, d_head=8, d_ff=40, scale_scores=True)
_GATED = replace(_DECODER, ffn="gated_gelu", scale_scores=False, extra_head_rows=(3, 0, 7))

MODELS: dict[str, EncoderDecoderSpec] = {
    "interformer": replace(INTERFORMER, decoder=_DECODER),
    "t5": replace(T5, decoder=_GATED),
}

PROFILES = (BeamProfile((1, 3, 4), 6), BeamProfile((1, 5, 17), 13))


@dataclass(frozen=True)
class Batch:
    features: Features
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
