"""A whole model: features, encoder and decoder. The service's stages run them one by one."""

from torch import nn

from grace.model.definition.decoder import Decoder
from grace.model.definition.features import InterFormerFeatures, T5Features
from grace.model.definition.inputs import ModelInputs, UserContext
from grace.model.definition.interformer import InterFormerEncoder
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_encoder import T5Encoder


class Model(nn.Module):
    """Its state dict names the tensors of model.safetensors: features.*, encoder.*, decoder.*."""

    def __init__(self, spec: ModelSpec) -> None:
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

    def user_context(self, inputs: ModelInputs) -> UserContext:
        context: UserContext = self.encoder(self.features(inputs))
        return context
