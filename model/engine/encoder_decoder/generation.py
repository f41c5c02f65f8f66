"""Generation of the T5 family on a GPU: the fast encoder, then the fast loop, in one precision."""

import torch
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.kernels import AdmissionSlot, Ops, load_encoder_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import FeatureTensors, map_tensors
from grace.model.definition.model import Model
from grace.model.engine.cuda_graphs import GraphMemory
from grace.model.engine.encoder_decoder.decode_loop import fast_search
from grace.model.engine.encoder_decoder.decode_weights import FastWeights
from grace.model.engine.encoder_decoder.fast_encoder import fast_encoder
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.encoder_decoder.rounded_weights import rounded_products, weights_in
from grace.model.engine.feature_stage import FastStage, Features, PlacedLookups, at_once
from grace.model.engine.generation import EngineSettings, SearchTask
from grace.model.engine.precision import PRECISIONS


class FastGeneration:
    """It copies the model's weights, which are in float32, and keeps the copies on their device.

    Products share a workspace. So only one batch runs at a time, here or in graphs of this object.
    """

    graphs = 0

    def __init__(self, model: Model, ops: Ops, settings: EngineSettings) -> None:
        folded = FastWeights.of(model.decoder)
        precision, dtype = settings.precision, PRECISIONS[settings.precision]
        self.dtype = dtype
        self.device, self.vocab_sizes, self.ops = folded.device, folded.vocab_sizes, ops
        self.fp8_products = rounded_products(folded.spec, precision, settings.fp8_keep)
        self.memo = PrefixMemo.build(folded, dtype, settings.memo_bytes, ops)
        self._weights = weights_in(folded, precision, settings.fp8_keep)
        self.clipped = self._weights.clipped
        self._encoder = fast_encoder(model, dtype, load_encoder_ops(self.device))

    @property
    def fp8_clipped(self) -> int:
        return 0 if self.clipped is None else int(self.clipped)

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
        found = fast_search(self._weights, self.memo, self._encoder(features), slot, profile, ops)
        return Generated(slot.leaves_of(found.nodes), found.scores, found.corrupt)
