"""The features of a batch, from requests to arrays and from arrays to an encoder's input.

On a CPU that is the model's own definition; on a GPU it is `grace.model.engine.fast_features`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.engine.fast_features import FastFeatures
from grace.model.engine.feature_lookups import FeatureLookups, model_inputs_of, squashed
from grace.model.engine.feature_reader import FeatureReader, ReadFeatures


class FeatureStage(Protocol):
    def read(self, messages: Sequence[bytes], size: int) -> ReadFeatures:
        """As `FeatureReader.read`."""

    def compute(self, inputs: FeatureLookups) -> FeatureTensors:
        """On the current stream, for what this stage's `read` made, on the model's device."""


class PlainStage:
    def __init__(self, model: Model) -> None:
        self._spec = model.spec
        self._features = model.features
        self.read = FeatureReader(model.spec).read

    @torch.inference_mode()
    def compute(self, inputs: FeatureLookups) -> FeatureTensors:
        features: FeatureTensors = self._features(model_inputs_of(self._spec, inputs))
        return features


class FastStage:
    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self._reader = FeatureReader(model.spec)
        self._features = FastFeatures(model, dtype)

    def read(self, messages: Sequence[bytes], size: int) -> ReadFeatures:
        read = self._reader.read(messages, size)
        return replace(read, inputs=squashed(read.inputs))

    def compute(self, inputs: FeatureLookups) -> FeatureTensors:
        return self._features.compute(inputs)


def feature_stage_for(model: Model, dtype: torch.dtype) -> FeatureStage:
    """The fastest there is where the model is."""
    if model.decoder.start.device.type == "cpu":
        return PlainStage(model)
    return FastStage(model, dtype)
