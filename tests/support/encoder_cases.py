"""Small encoder models and random requests for them."""

import numpy as np
import torch
from torch import Tensor

from grace.model.definition.inputs import FeatureTensors, UserContext
from grace.model.definition.model import Model
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    InputSpec,
    ModelSpec,
    SequenceInput,
)
from grace.model.definition.t5_spec import (
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    InterFormerSpec,
    T5EncoderSpec,
)
from grace.proto.retrieval_pb2 import Features
from support.plain_inputs import encode_inputs

DECODER = DecoderSpec(layers=1, d_model=8, heads=1, d_head=8, d_ff=8)
VOCAB_SIZES = (7, 5, 11)


def interformer_spec(d_model: int = 21, heads: int = 3) -> EncoderDecoderSpec:
    inputs: dict[str, InputSpec] = {
        "hour": DenseInput(default=(12.0,)),
        "clicks": SequenceInput(max_length=9, side={"action": 3, "surface": 6}),
        "device": CategoricalInput(cardinality=4, default=1),
        "rates": DenseInput(size=3),
        "pages": BagInput(hash_rows=31),
        "buys": SequenceInput(max_length=5, side={}),
        "topics": BagInput(hash_rows=17, default=(5, 6)),
    }
    interformer = InterFormerSpec(
        blocks=2,
        d_model=d_model,
        heads=heads,
        d_ff=37,
        context_tokens=7,
        non_sequence_tokens=5,
        summary_tokens=2,
        bag_dim=11,
    )
    encoder = EncoderSpec(interformer=interformer)
    return EncoderDecoderSpec("test", VOCAB_SIZES, inputs, encoder, DECODER)


def t5_spec(d_model: int = 21, heads: int = 3, d_head: int = 7) -> EncoderDecoderSpec:
    encoder = T5EncoderSpec(
        layers=2,
        d_model=d_model,
        heads=heads,
        d_head=d_head,
        d_ff=37,
        history="clicks",
        num_tokens=30,
        token_offsets=(3, 10, 15),
        prefix_tokens=(28, 27),
        eos_token=1,
        ffn="gated_gelu",
        relative_buckets=8,
        relative_max_distance=20,
    )
    inputs: dict[str, InputSpec] = {"clicks": SequenceInput(max_length=9, side={})}
    return EncoderDecoderSpec("test", VOCAB_SIZES, inputs, EncoderSpec(t5=encoder), DECODER)


INTERFORMER = interformer_spec()
T5 = t5_spec()


def random_features(spec: ModelSpec, rng: np.random.Generator) -> Features:
    """Every input given, sequences at least half full."""
    features = Features()
    for name, value in spec.inputs.items():
        if isinstance(value, DenseInput):
            features.dense[name].values.extend(rng.normal(0, 10, value.size))
        elif isinstance(value, CategoricalInput):
            features.categorical[name].ids.append(int(rng.integers(value.cardinality)))
        elif isinstance(value, BagInput):
            ids = rng.integers(-(2**63), 2**63 - 1, rng.integers(1, 7))
            features.bags[name].ids.extend(ids.tolist())
        else:
            count = int(rng.integers(value.max_length // 2 + 1, value.max_length + 1))
            sids = rng.integers(0, spec.vocab_sizes, (count, spec.sid_length))
            passed = np.cumsum(rng.integers(1, 2 ** rng.integers(1, 30, count)))
            events = features.sequences[name]
            events.sids.extend(sids.flatten().tolist())
            events.timestamps_ms.extend((1_700_000_000_000 + passed).tolist())
            for side, size in value.side.items():
                events.side[side].ids.extend(rng.integers(0, size, count).tolist())
    return features


def context_of(model: Model, *requests: Features, batch: int | None = None) -> UserContext:
    with torch.inference_mode():
        return model.user_context(encode_inputs(model.spec, requests, batch))


def tensors_of(features: FeatureTensors) -> list[Tensor]:
    single = [] if features.non_sequence is None else [features.non_sequence]
    return [*single, *(x for each in features.sequences for x in (each.states, each.mask))]
