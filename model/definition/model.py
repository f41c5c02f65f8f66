"""A whole model: features, encoder and decoder. The service's stages run them one by one.

Its state dict names the tensors of model.safetensors: features.*, encoder.*, decoder.*.
"""

from typing import TypeAlias

from torch import nn

from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.model.definition.causal import CausalDecoder
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.decoder import Decoder
from grace.model.definition.features import InterFormerFeatures, PromptFeatures, T5Features
from grace.model.definition.inputs import ModelInputs, UserContext
from grace.model.definition.interformer import InterFormerEncoder
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_encoder import T5Encoder
from grace.model.definition.t5_spec import EncoderDecoderSpec


class Model(nn.Module):
    """An encoder, and a decoder of the T5 family."""

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.features: T5Features | InterFormerFeatures
        self.encoder: T5Encoder | InterFormerEncoder
        if spec.encoder.t5 is not None:
            self.features, self.encoder = T5Features(spec), T5Encoder(spec.encoder.t5)
        else:
            assert spec.encoder.interformer is not None
            self.features = InterFormerFeatures(spec)
            self.encoder = InterFormerEncoder(spec.encoder.interformer, len(spec.sequences))
        self.decoder = Decoder(spec.decoder, spec.vocab_sizes, spec.context_dim)

    def user_context(self, inputs: ModelInputs, ops: EncoderOps = PLAIN_ENCODER) -> UserContext:
        """Return the user context. An InterFormer uses plain operations, whatever `ops` has."""
        features = self.features(inputs)
        if isinstance(self.encoder, T5Encoder):
            context: UserContext = self.encoder(features, ops)
        else:
            context = self.encoder(features)
        return context


class CausalModel(nn.Module):
    """A decoder alone: the prompts of requests are its features and its context."""

    def __init__(self, spec: CausalModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.features = PromptFeatures()
        self.encoder = nn.Identity()
        self.decoder = CausalDecoder(spec)


AnyModel: TypeAlias = Model | CausalModel


def model_of(spec: ModelSpec) -> AnyModel:
    """Return a model of the specification's family."""
    if isinstance(spec, CausalModelSpec):
        return CausalModel(spec)
    assert isinstance(spec, EncoderDecoderSpec)
    return Model(spec)
