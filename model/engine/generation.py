"""Generation for the generate stage: features in, SIDs out, in one of three ways.

`PlainGeneration` is the definition, on any device. `FastGeneration` runs the encoder and the fast
loop in one precision, one operation after the other. `GraphGeneration` records it as CUDA graphs.

A batch has as many rows as one of the configuration's batch buckets. Requests have the first rows
and empty users the others, so every shape is known beforehand.
"""

from typing import Any

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.options import Fp8Product
from grace.kernels import AdmissionSlot, Ops, load_encoder_ops
from grace.model.definition.beam_search import Generated, SearchableDecoder, beam_search
from grace.model.definition.inputs import FeatureTensors, Prompts, map_tensors
from grace.model.definition.model import AnyModel, CausalModel, Model
from grace.model.engine.causal.generation import CausalGeneration
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.encoder_decoder.decode_loop import fast_search
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.encoder_decoder.fast_encoder import fast_encoder
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.encoder_decoder.rounded_weights import rounded_products, weights_in
from grace.model.engine.feature_stage import (
    FastStage,
    Features,
    FeatureStage,
    PlacedLookups,
    PromptStage,
)
from grace.model.engine.graph_generation import (
    EngineSettings,
    Generation,
    GraphGeneration,
    SearchTask,
)
from grace.model.engine.precision import PRECISIONS


def generation_for(
    model: AnyModel,
    ops: Ops,
    settings: EngineSettings,
    config: GenerationConfig,
    stage: FeatureStage,
) -> Generation:
    """Return the generation for the features of a stage. On a GPU, record all its graphs."""
    sizes = config.batch_buckets, config.profiles.values()
    if isinstance(stage, FastStage) and isinstance(model, Model):
        return GraphGeneration(FastGeneration(model, ops, settings), stage, *sizes)
    if isinstance(stage, PromptStage) and isinstance(model, CausalModel):
        return GraphGeneration(CausalGeneration(model, ops, settings, config), stage, *sizes)
    precision, device = settings.precision, model.decoder.device
    if precision != "fp32":
        raise ConfigError(f"precision: {precision} needs a GPU; on device {device} use fp32")
    return PlainGeneration(model, ops)


class PlainGeneration:
    """The definition: for a CPU, and to compare the others with."""

    memo: PrefixMemo | None = None
    fp8_products: tuple[Fp8Product, ...] = ()
    graphs = 0

    def __init__(self, model: AnyModel, ops: Ops) -> None:
        self._model = model
        self._ops = ops

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        decoder: SearchableDecoder[Any, Any] = self._model.decoder
        given = features if isinstance(features, Prompts) else at_once(features)
        context = self._model.encoder(given)
        ops = task.traced(self._ops)
        found = beam_search(decoder, context, task.users, task.index, task.profile, ops)
        return map_tensors(found, torch.Tensor.cpu)


class FastGeneration:
    """It copies the model's weights, which are in float32, and keeps the copies on their device.

    Products share a workspace. So only one batch runs at a time, here or in graphs of this object.
    """

    graphs = 0

    def __init__(self, model: Model, ops: Ops, settings: EngineSettings) -> None:
        folded = FastWeights.of(model.decoder)
        precision, dtype = settings.precision, PRECISIONS[settings.precision]
        self.dtype = dtype
        self.device = folded.device
        self.vocab_sizes = folded.vocab_sizes
        self.ops = ops
        self.fp8_products = rounded_products(folded.spec, precision, settings.fp8_keep)
        self.memo = PrefixMemo.build(folded, dtype, settings.memo_bytes, ops)
        self._weights = weights_in(folded, precision, settings.fp8_keep)
        self._encoder = fast_encoder(model, dtype, load_encoder_ops(self.device))

    def recorded(self, stage: FastStage, bucket: int, _: GraphMemory) -> PlacedLookups:
        return stage.recorded(bucket)

    def place(self, inputs: PlacedLookups, features: Features) -> None:
        if not isinstance(features, PlacedLookups) or features.stage is not inputs.stage:
            raise ValueError("features must be those of the model that generation was made for")
        if features.batch != inputs.batch:
            raise ValueError(f"features must be of {inputs.batch} requests, got {features.batch}")
        inputs.at.copy_(features.at, non_blocking=True)

    @torch.inference_mode()
    def search(self, features: Features, slot: AdmissionSlot, profile: BeamProfile) -> Tensor:
        return self._search(at_once(features), slot, profile, self.ops).packed()

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        slot, ops = task.begin(self.vocab_sizes, self.ops)
        found = self._search(at_once(features).to(self.dtype), slot, task.profile, ops)
        return map_tensors(found, torch.Tensor.cpu)

    def _search(
        self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile, ops: Ops
    ) -> Generated:
        context = self._encoder(features)
        found = fast_search(self._weights, self.memo, context, slot, profile, ops)
        return Generated(slot.leaves_of(found.nodes), found.scores, found.corrupt)


def at_once(features: Features) -> FeatureTensors:
    """Return an encoder's features, computed now if they were not yet."""
    found = features.compute() if isinstance(features, PlacedLookups) else features
    assert isinstance(found, FeatureTensors)
    return found
