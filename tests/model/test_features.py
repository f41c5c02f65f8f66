"""The features stage, compared with lists and loops."""

import numpy as np
import pytest
import torch

from grace.model.checkpoints.init import random_model
from grace.model.definition.features import InterFormerFeatures, T5Features
from support.encoder_cases import INTERFORMER, T5, random_features
from support.plain_inputs import EventSequence, InputEncoder, RequestFeatures, encode_inputs
from support.plain_interformer import event_states, non_sequence_tokens


@pytest.fixture(scope="module")
def interformer() -> InterFormerFeatures:
    features = random_model(INTERFORMER, seed=3).features
    assert isinstance(features, InterFormerFeatures)
    return features


@pytest.fixture(scope="module")
def requests() -> list[RequestFeatures]:
    rng = np.random.default_rng(2)
    given = [random_features(INTERFORMER, rng) for _ in range(5)]
    return [given[0], RequestFeatures(), *given[1:], RequestFeatures()]


@torch.inference_mode()
def test_t5_features_are_prefix_history_and_end_with_padding_last() -> None:
    features = random_model(T5, seed=3).features
    assert isinstance(features, T5Features)
    events = [[4, 0, 10, 6, 4, 3], [], [1, 2, 3] * 12]
    requests = [RequestFeatures(sequences={"clicks": EventSequence(sids)}) for sids in events]
    out = features(encode_inputs(T5, requests, batch=5))
    expected = [
        [28, 27, 3 + 4, 10 + 0, 15 + 10, 3 + 6, 10 + 4, 15 + 3, 1],
        [28, 27, 1],
        [28, 27, *[3 + 1, 10 + 2, 15 + 3] * 9, 1],
        [28, 27, 1],
        [28, 27, 1],
    ]
    assert out.non_sequence is None
    (history,) = out.sequences
    assert history.states.shape == (5, T5.context_tokens, 21)
    for states, mask, tokens in zip(history.states, history.mask, expected, strict=True):
        assert mask.tolist() == [place < len(tokens) for place in range(T5.context_tokens)]
        assert torch.equal(states[mask], features.embed[tokens])
        assert not states[~mask].any()


@torch.inference_mode()
def test_events_are_sums_of_embeddings_padded_to_the_maximum(
    interformer: InterFormerFeatures, requests: list[RequestFeatures]
) -> None:
    out = interformer(encode_inputs(INTERFORMER, requests))
    weights = weights_of(interformer)
    encoder = InputEncoder(INTERFORMER)
    for row, request in enumerate(requests):
        expected = event_states(INTERFORMER, weights, encoder.encode(request))
        for sequence, states, declared in zip(
            out.sequences, expected, INTERFORMER.sequences.values(), strict=True
        ):
            count = len(states)
            assert sequence.states.shape[1] == declared.max_length
            torch.testing.assert_close(
                sequence.states[row, :count].double(), torch.from_numpy(states), rtol=0, atol=1e-5
            )
            assert not sequence.states[row, count:].any()
            assert sequence.mask[row].tolist() == [
                place < count for place in range(declared.max_length)
            ]


@torch.inference_mode()
def test_non_sequence_inputs_become_tokens(
    interformer: InterFormerFeatures, requests: list[RequestFeatures]
) -> None:
    tokens = interformer(encode_inputs(INTERFORMER, requests)).non_sequence
    assert tokens is not None
    weights = weights_of(interformer)
    encoder = InputEncoder(INTERFORMER)
    for row, request in zip(tokens, requests, strict=True):
        expected = non_sequence_tokens(INTERFORMER, weights, encoder.encode(request))
        torch.testing.assert_close(row.double(), torch.from_numpy(expected), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_model_of_sequences_only_has_learned_tokens() -> None:
    inputs = {"clicks": INTERFORMER.inputs["clicks"]}
    spec = type(INTERFORMER)(
        "test", INTERFORMER.vocab_sizes, inputs, INTERFORMER.encoder, INTERFORMER.decoder
    )
    model = random_model(spec, seed=3)
    out = model.features(encode_inputs(spec, [RequestFeatures()], batch=3))
    assert isinstance(model.features, InterFormerFeatures)
    assert torch.equal(out.non_sequence, model.features.tokens.expand(3, -1, -1))
    assert model.encoder(out).states.isfinite().all()


@torch.inference_mode()
def test_a_model_without_sequences_has_a_context() -> None:
    inputs = {name: INTERFORMER.inputs[name] for name in ("hour", "pages")}
    spec = type(INTERFORMER)(
        "test", INTERFORMER.vocab_sizes, inputs, INTERFORMER.encoder, INTERFORMER.decoder
    )
    model = random_model(spec, seed=3)
    requests = [RequestFeatures(dense={"hour": [3]}), RequestFeatures(dense={"hour": [4]})]
    context = model.user_context(encode_inputs(spec, requests))
    assert not torch.equal(context.states[0], context.states[1])


def weights_of(features: InterFormerFeatures) -> dict[str, np.ndarray]:
    return {
        f"features.{name}": weight.numpy().astype(np.float64)
        for name, weight in features.state_dict().items()
    }
