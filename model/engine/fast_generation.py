"""Encoder and fast search in one precision, launched one operation after the other.

`grace.model.engine.captured_generation` records the same calls and replays them.
"""

import copy

import torch

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.kernels import (
    AdmissionSlot,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
    load_encoder_ops,
)
from grace.model.definition.beam_search import Generated, leaves_of, require_together
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.model import Model
from grace.model.engine.fast_search import FoundNodes, fast_search
from grace.model.engine.fast_weights import PRECISIONS, FastWeights, Precision
from grace.model.engine.prefix_memo import PrefixMemo

__all__ = ["FastGeneration"]


class FastGeneration:
    """Takes copies of the model's weights, in float32 as they are now, where the model is.

    One batch at a time, those of graphs recorded from this among them: products share what they
    work in.
    """

    def __init__(self, model: Model, ops: Ops, precision: Precision, memo_bytes: int) -> None:
        folded = FastWeights.of(model.decoder)
        dtype = PRECISIONS[precision]
        self.dtype = dtype
        self.device = folded.device
        self.vocab_sizes = folded.vocab_sizes
        self.ops = ops
        self.memo = PrefixMemo.build(folded, dtype, memo_bytes, ops)
        self._weights = folded.to(self.device, dtype)
        self._encoder_ops = load_encoder_ops(self.device)
        self._encoder = copy.deepcopy(model.encoder).to(dtype).eval().requires_grad_(False)
        if dtype != torch.float32:
            self._require_range(precision)

    @torch.inference_mode()
    def search(
        self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile
    ) -> FoundNodes:
        """For what the slot points at when this runs; `features` are in this precision."""
        context = self._encoder(features, self._encoder_ops)
        return fast_search(self._weights, self.memo, context, slot, profile, self.ops)

    @torch.inference_mode()
    def generate(
        self,
        features: FeatureTensors,
        users: UserTensors,
        index: DecodeIndex,
        profile: BeamProfile,
    ) -> Generated:
        require_together(self.vocab_sizes, index, profile)
        slot = admission_slot(self.ops)
        slot.point_at(users, index)
        found = self.search(_in_type(features, self.dtype), slot, profile)
        return Generated(leaves_of(found.nodes, index), found.scores, found.corrupt)

    def _require_range(self, precision: Precision) -> None:
        """What is beyond it has become an infinity, and every request that meets it would fail."""
        named = [
            *((f"decoder's {name}", weight) for name, weight in self._weights.named_tensors()),
            *((f"encoder's {name}", weight) for name, weight in self._encoder.named_parameters()),
            *((f"memo of step {step}", x) for step, x in enumerate(self.memo.states)),
            *((f"memo of step {step}", x) for step, x in enumerate(self.memo.queries)),
        ]
        for name, tensor in named:
            if tensor.numel() and not all(x.isfinite() for x in torch.aminmax(tensor)):
                raise ConfigError(
                    f"precision: {precision} holds no number beyond "
                    f"{torch.finfo(tensor.dtype).max:.5g}, which the {name} has; use "
                    f"{'bf16 or fp32' if precision == 'fp16' else 'fp32'}"
                )


def _in_type(features: FeatureTensors, dtype: torch.dtype) -> FeatureTensors:
    single = features.non_sequence
    return FeatureTensors(
        None if single is None else single.to(dtype),
        tuple(SequenceTensors(s.states.to(dtype), s.mask) for s in features.sequences),
    )
