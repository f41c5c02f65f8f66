"""A model: three modules, run one after another by the service's stages."""

from torch import nn

from model.decoder import Decoder
from model.encoders import InterFormerEncoder, T5Encoder
from model.features import InterFormerFeatures, T5Features
from model.inputs import ModelInputs, UserContext
from model.spec import ModelSpec

__all__ = ["Model"]


class Model(nn.Module):
    """Its state dict is model.safetensors: features.*, encoder.*, decoder.*."""

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
            self.encoder = InterFormerEncoder(spec.encoder.interformer, spec)
        self.decoder = Decoder(spec.decoder, spec.vocab_sizes, spec.context_dim)

    def user_context(self, inputs: ModelInputs) -> UserContext:
        context: UserContext = self.encoder(self.features(inputs))
        return context
