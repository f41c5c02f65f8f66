"""What the input and the features stage call: requests to arrays, and arrays to an encoder's input.

On a CPU that is the model's own definition; on a GPU it is `grace.model.engine.fast_features`.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch

from grace.model.definition.input_encoding import EncodedRequest, InputEncoder
from grace.model.definition.inputs import FeatureTensors, ModelInputs
from grace.model.definition.model import Model
from grace.model.engine.fast_features import FastFeatures
from grace.model.engine.feature_lookups import FeatureLookups, LookupEncoder
from grace.model.engine.native_lookups import DirectInputs, NativeLookups
from grace.model.engine.wire_features import WireFeatures

__all__ = ["BatchInputs", "FastStage", "FeatureStage", "PlainStage", "feature_stage_for"]

BatchInputs: TypeAlias = ModelInputs | FeatureLookups


class FeatureStage(Protocol):
    def direct(self, requests: Sequence[WireFeatures], size: int) -> DirectInputs | None:
        """What `batch` makes, straight from the bytes; None if this stage takes the plain way."""

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> BatchInputs:
        """In the CPU's memory; empty requests, all defaults, fill the batch up to `size`."""

    def compute(self, inputs: BatchInputs) -> FeatureTensors:
        """On the current stream, of what this stage's `batch` made, on the model's device."""


class PlainStage:
    def __init__(self, model: Model) -> None:
        self._inputs = InputEncoder(model.spec)
        self._features = model.features

    def direct(self, requests: Sequence[WireFeatures], size: int) -> None:  # noqa: ARG002
        return None

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> BatchInputs:
        return self._inputs.batch(requests, size)

    @torch.inference_mode()
    def compute(self, inputs: BatchInputs) -> FeatureTensors:
        assert isinstance(inputs, ModelInputs)
        features: FeatureTensors = self._features(inputs)
        return features


class FastStage:
    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self._encoder = LookupEncoder(model.spec)
        self._native = NativeLookups(model.spec)
        self._features = FastFeatures(model, dtype)

    def direct(self, requests: Sequence[WireFeatures], size: int) -> DirectInputs | None:
        return self._native.read(requests, size)

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> BatchInputs:
        return self._encoder.batch(requests, size)

    def compute(self, inputs: BatchInputs) -> FeatureTensors:
        assert isinstance(inputs, FeatureLookups)
        return self._features.compute(inputs)


def feature_stage_for(model: Model, dtype: torch.dtype) -> FeatureStage:
    """The fastest there is where the model is."""
    if model.decoder.start.device.type == "cpu":
        return PlainStage(model)
    return FastStage(model, dtype)
