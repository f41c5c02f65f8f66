"""Features as look-ups of a few tables, compared with the model's; copies to a device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.engine.device_copy import Blocks, Staging
from grace.model.engine.feature_stage import FastStage, PlacedLookups, at_once
from grace.proto.retrieval_pb2 import Features
from support.emulated_cuda import emulated_cuda
from support.encoder_cases import INTERFORMER, T5, random_features, tensors_of
from support.plain_inputs import encode_inputs, features_message

DEVICES = pytest.mark.parametrize(
    "device", [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]
)


def only(*kinds: type) -> EncoderDecoderSpec:
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


def model_of(spec: EncoderDecoderSpec) -> Model:
    return random_model(spec, seed=3).eval().requires_grad_(False)


def requests_of(spec: ModelSpec, seed: int) -> list[Features]:
    """Return full requests, an empty one, and one whose sequences have neither times nor sides."""
    rng = np.random.default_rng(seed)
    full = [random_features(spec, rng) for _ in range(5)]
    (bare := Features()).CopyFrom(full[0])
    for events in bare.sequences.values():
        events.ClearField("timestamps_ms")
        events.ClearField("side")
    return [full[0], Features(), bare, *full[1:]]


def assert_same_features(got: FeatureTensors, expected: FeatureTensors, tolerance: float) -> None:
    for one, other in zip(tensors_of(got), tensors_of(expected), strict=True):
        one = one.cpu()
        if one.dtype == torch.bool:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(
                one.float(), other.float(), rtol=tolerance, atol=tolerance, check_device=False
            )


@DEVICES
@torch.inference_mode()
@pytest.mark.parametrize("kind", SPECS)
def test_look_ups_give_the_model_s_features(kind: str, device: torch.device) -> None:
    spec = SPECS[kind]
    model = model_of(spec)
    requests = [requests_of(spec, seed) for seed in range(3)] + [[]]
    expected = [model.features(encode_inputs(spec, each, 9)) for each in requests]
    fast, blocks = FastStage(model.to(device), torch.float32), Blocks(device)
    for each, wanted in zip(requests, expected, strict=True):
        staging = Staging(blocks)
        messages = [features_message(request) for request in each]
        _, compute = fast.read(messages, 9, staging)
        assert_same_features(at_once(compute()), wanted, 2e-6 if device.type == "cpu" else 2e-5)


@pytest.mark.subprocess  # it runs the compiler
@torch.inference_mode()
@pytest.mark.parametrize("kind", SPECS)
def test_a_recorded_function_computes_the_batch_to_which_it_points(kind: str) -> None:
    """The kernels run on the host."""
    pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")
    from grace.kernels.ops_cuda import CUDA_FEATURES

    spec, blocks = SPECS[kind], Blocks(torch.device("cpu"))
    model, requests = model_of(spec), requests_of(spec, 1)
    expected = model.features(encode_inputs(spec, requests, 9))
    with emulated_cuda():
        stage = FastStage(model, torch.float32, CUDA_FEATURES)
        recorded = stage.recorded(9)
        recorded.compute()
        staging = Staging(blocks)
        messages = [*map(features_message, requests)]
        placed = stage.read(messages, 9, staging)[1]()
        assert isinstance(placed, PlacedLookups)
        recorded.at.copy_(placed.at)
        assert_same_features(recorded.compute(), expected, 2e-5)
        assert_same_features(placed.compute(), expected, 2e-5)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "interformer"])
def test_bf16_rounds_once_where_the_model_would_round_each_sum(kind: str) -> None:
    spec, dtype = SPECS[kind], torch.bfloat16
    model = model_of(spec)
    fast = FastStage(model, dtype)
    staging = Staging(Blocks(torch.device("cpu")))
    requests = requests_of(spec, seed=1)
    _, compute = fast.read([*map(features_message, requests)], 8, staging)
    got = at_once(compute())
    assert got.sequences[0].states.dtype == dtype
    expected = model.features(encode_inputs(spec, requests, 8))
    assert_same_features(got, expected, 4 * torch.finfo(dtype).eps)
