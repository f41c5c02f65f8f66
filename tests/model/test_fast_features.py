"""Features as look-ups of a few tables, against the model's own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)
from grace.model.engine.fast_features import FastFeatures
from grace.model.engine.feature_lookups import FeatureLookups, squashed
from grace.model.engine.feature_reader import FeatureReader
from grace.model.engine.feature_stage import FastStage, PlainStage, feature_stage_for
from grace.model.engine.one_copy import copied_together, packed
from support.encoder_cases import INTERFORMER, T5, random_features
from support.plain_inputs import EventSequence, RequestFeatures, encode_inputs, features_message

CPU = torch.device("cpu")


def only(*kinds: type) -> ModelSpec:
    inputs = {name: x for name, x in INTERFORMER.inputs.items() if isinstance(x, kinds)}
    return replace(INTERFORMER, inputs=inputs)


SPECS = {
    "t5": T5,
    "t5-bare": replace(T5, encoder=replace(T5.encoder, t5=replace(
        T5.encoder.t5, prefix_tokens=(), eos_token=None))),  # type: ignore[type-var]
    "interformer": INTERFORMER,
    "sequences": only(SequenceInput),
    "no-sequence": only(DenseInput, CategoricalInput, BagInput),
    "no-dense": only(SequenceInput, CategoricalInput, BagInput),
    "bags": only(SequenceInput, BagInput),
}  # fmt: skip


def requests_of(spec: ModelSpec, seed: int, count: int) -> list[RequestFeatures]:
    """Full ones, an empty one, and one whose sequences have neither times nor sides."""
    rng = np.random.default_rng(seed)
    full = [random_features(spec, rng) for _ in range(count)]
    bare = {name: EventSequence(given.sids) for name, given in full[0].sequences.items()}
    return [full[0], RequestFeatures(), replace(full[0], sequences=bare), *full[1:]]


def lookups_of(spec: ModelSpec, requests: Sequence[RequestFeatures], size: int) -> FeatureLookups:
    messages = [features_message(each) for each in requests]
    return squashed(FeatureReader(spec).read(messages, size).inputs)


def assert_same_features(got: FeatureTensors, expected: FeatureTensors, tolerance: float) -> None:
    assert (got.non_sequence is None) == (expected.non_sequence is None)
    if got.non_sequence is not None and expected.non_sequence is not None:
        torch.testing.assert_close(
            got.non_sequence.float(), expected.non_sequence.float(), rtol=tolerance, atol=tolerance
        )
    for one, other in zip(got.sequences, expected.sequences, strict=True):
        assert torch.equal(one.mask, other.mask)
        torch.testing.assert_close(
            one.states.float(), other.states.float(), rtol=tolerance, atol=tolerance
        )


@torch.inference_mode()
@pytest.mark.parametrize("kind", SPECS)
def test_look_ups_are_the_model_s_features(kind: str) -> None:
    spec = SPECS[kind]
    model = random_model(spec, seed=3).eval().requires_grad_(False)
    fast = FastFeatures(model, torch.float32)
    for seed in range(3):
        requests = requests_of(spec, seed, 5)
        expected = model.features(encode_inputs(spec, requests, 9).inputs)
        got = fast.compute(lookups_of(spec, requests, 9))
        assert_same_features(got, expected, 2e-6)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["t5", "interformer"])
def test_a_lower_precision_rounds_once_where_the_model_would_round_each_sum(
    kind: str, dtype: torch.dtype
) -> None:
    spec = SPECS[kind]
    model = random_model(spec, seed=3).eval().requires_grad_(False)
    requests = requests_of(spec, 1, 5)
    expected = model.features(encode_inputs(spec, requests, 8).inputs)
    got = FastFeatures(model, dtype).compute(lookups_of(spec, requests, 8))
    assert got.sequences[0].states.dtype == dtype
    assert_same_features(got, expected, 4 * torch.finfo(dtype).eps)


@torch.inference_mode()
def test_shapes_depend_on_the_batch_size_alone_but_for_the_bags_ids() -> None:
    few, many = requests_of(INTERFORMER, 1, 1), requests_of(INTERFORMER, 2, 5)
    one, other = lookups_of(INTERFORMER, few, 7), lookups_of(INTERFORMER, many, 7)
    for name in ("dense", "categorical", "bag_offsets", "events"):
        assert getattr(one, name).shape == getattr(other, name).shape
    assert one.bag_rows.shape != other.bag_rows.shape


def test_no_request_at_all_is_a_batch_of_empty_ones() -> None:
    lookups = lookups_of(INTERFORMER, [], 4)
    model = random_model(INTERFORMER, seed=3).eval().requires_grad_(False)
    got = FastFeatures(model, torch.float32).compute(lookups)
    assert not any(sequence.mask.any() for sequence in got.sequences)


def test_a_cpu_computes_the_definition_itself() -> None:
    model = random_model(INTERFORMER, seed=3).eval().requires_grad_(False)
    assert isinstance(feature_stage_for(model, torch.float32), PlainStage)
    requests = requests_of(INTERFORMER, 1, 3)
    messages = [features_message(each) for each in requests]
    plain, fast = PlainStage(model), FastStage(model, torch.float32)
    got = plain.compute(plain.read(messages, 6).inputs)
    with torch.inference_mode():
        expected = model.features(encode_inputs(INTERFORMER, requests, 6).inputs)
    assert_same_features(got, expected, 0.0)
    assert_same_features(fast.compute(fast.read(messages, 6).inputs), expected, 2e-6)


def test_what_is_on_the_cpu_need_not_be_copied() -> None:
    given = (torch.arange(7), torch.zeros(0), torch.ones((3, 5), dtype=torch.bool))
    assert all(one is other for one, other in zip(copied_together(given, CPU), given, strict=True))


def tensors_of_many_kinds() -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    return [
        torch.from_numpy(rng.integers(-(2**40), 2**40, 63)),
        torch.zeros((0, 3), dtype=torch.int32),
        torch.from_numpy(rng.random((5, 7), np.float32)),
        torch.from_numpy(rng.random(111) < 0.5),
        torch.arange(24, dtype=torch.int32).view(4, 6).t(),
        torch.from_numpy(rng.integers(-9, 9, (3, 1, 2))),
        torch.zeros(0),
    ]


def assert_views_of_one(there: tuple[torch.Tensor, ...], given: list[torch.Tensor]) -> None:
    for one, other in zip(given, there, strict=True):
        assert torch.equal(one, other.cpu())
        assert one.dtype == other.dtype
    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_what_is_packed_is_spread_as_it_was(count: int) -> None:
    given = tensors_of_many_kinds()[:count]
    together = packed(given, pinned=False)
    there = together.spread(together.whole.clone())
    together.whole.fill_(255)
    if given:
        assert_views_of_one(there, given)
    assert len(there) == count


def test_a_type_begins_where_its_numbers_may_stand() -> None:
    given = (torch.arange(3, dtype=torch.uint8), torch.tensor([5, -7]), torch.tensor([0.5]))
    together = packed(given, pinned=False)
    for tensor, copy in zip(given, together.spread(together.whole.clone()), strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.gpu
@torch.inference_mode()
def test_one_copy_brings_every_tensor_as_it_was() -> None:
    given = tensors_of_many_kinds()
    there = copied_together(given, torch.device("cuda"))
    assert all(tensor.device.type == "cuda" for tensor in there)
    assert_views_of_one(there, given)


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("kind", SPECS)
def test_a_gpu_looks_up_what_the_cpu_does(kind: str) -> None:
    spec, device = SPECS[kind], torch.device("cuda")
    model = random_model(spec, seed=3).eval().requires_grad_(False)
    requests = requests_of(spec, 1, 5)
    expected = model.features(encode_inputs(spec, requests, 9).inputs)
    fast = FastFeatures(model.to(device), torch.float32)
    lookups = lookups_of(spec, requests, 9)
    got = fast.compute(FeatureLookups(*copied_together(lookups.tensors(), device)))
    on_host = FeatureTensors(
        None if got.non_sequence is None else got.non_sequence.cpu(),
        tuple(type(s)(s.states.cpu(), s.mask.cpu()) for s in got.sequences),
    )
    assert_same_features(on_host, expected, 2e-5)
