"""What the generate stage calls: features in, SIDs out, however they are computed.

A batch has as many rows as one of the configuration's batch buckets; requests have the first rows
and the others are empty users, so that every shape is known beforehand.
"""

from typing import Protocol

import torch

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.kernels import DecodeIndex, Ops, UserTensors
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.engine.captured_generation import CapturedGeneration
from grace.model.engine.fast_generation import FastGeneration
from grace.model.engine.fast_weights import Precision
from grace.model.engine.prefix_memo import PrefixMemo

__all__ = ["Generation", "PlainGeneration", "generation_for"]


class Generation(Protocol):
    """Of one checkpoint, for any snapshot of its SID space."""

    @property
    def memo(self) -> PrefixMemo | None:
        """None where nothing is computed beforehand."""

    def generate(
        self,
        features: FeatureTensors,
        users: UserTensors,
        index: DecodeIndex,
        profile: BeamProfile,
    ) -> Generated:
        """On the current stream, without waiting for it. What a batch was made of must live until
        the stream has come so far; what is returned is the caller's own."""


class PlainGeneration:
    """The definition, run as it is: on a CPU, or as what faster ones are compared with."""

    memo: PrefixMemo | None = None

    def __init__(self, model: Model, ops: Ops) -> None:
        self._model = model
        self._ops = ops

    @torch.inference_mode()
    def generate(
        self,
        features: FeatureTensors,
        users: UserTensors,
        index: DecodeIndex,
        profile: BeamProfile,
    ) -> Generated:
        context = self._model.encoder(features)
        return beam_search(self._model.decoder, context, users, index, profile, self._ops)


def generation_for(
    model: Model, ops: Ops, precision: Precision, memo_bytes: int, config: GenerationConfig
) -> Generation:
    """The fastest there is where the model is; on a GPU every bucket and profile is recorded."""
    device = model.decoder.start.device
    if device.type == "cuda":
        eager = FastGeneration(model, ops, precision, memo_bytes)
        return CapturedGeneration(model, eager, config.batch_buckets, config.profiles.values())
    if precision != "fp32":
        raise ConfigError(f"precision: {precision} needs a GPU; on device {device} use fp32")
    return PlainGeneration(model, ops)
